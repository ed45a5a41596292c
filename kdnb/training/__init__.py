"""The recipe of the shipped model: corpus, target, drafter, export, evaluation.

    python -m kdnb.training --out build/tiny --minutes 25

Needs the extra `train` (PyTorch). Nothing else in kdnb imports it.
"""
