"""Bert4Rec on TorchRec: from raw interactions to a trained, evaluated, sharded sequential recommender."""
