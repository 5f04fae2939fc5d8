"""The commands that run on the processes of a launcher, or start such: trainings and evaluations."""
