"""scikit-learn estimators: networks of binary weights that learn from tables."""

from __future__ import annotations

from bisnn.sklearn.estimators import BiSNNClassifier, BiSNNRegressor

__all__ = ["BiSNNClassifier", "BiSNNRegressor"]
