"""scikit-learn estimators: networks of binary weights that learn from tables.

>>> from sklearn.datasets import load_iris
>>> X, y = load_iris(return_X_y=True, as_frame=True)
>>> model = BiSNNClassifier(random_state=0).fit(X, y)
>>> model.score(X, y) > 0.95
True
"""

from __future__ import annotations

from bisnn.sklearn.estimators import BiSNNClassifier, BiSNNRegressor

__all__ = ["BiSNNClassifier", "BiSNNRegressor"]
