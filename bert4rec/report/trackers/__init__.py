"""The programs that show many runs beside each other, each as a place where a run's numbers go."""
