"""Evaluation: attacks on a model, outcomes by image, measures by class, checks of the evaluation itself."""
