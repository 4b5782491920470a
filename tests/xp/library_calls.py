"""Calls of SciPy and scikit-learn with arrays of a device, each compared with NumPy's result.

A program of its own, because both libraries read SCIPY_ARRAY_API when they are imported:
`python -m tests.xp.library_calls DEVICE` prints a JSON object with the outcome of each call.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

os.environ["SCIPY_ARRAY_API"] = "1"

import numpy as np
import scipy.ndimage
import scipy.signal
import scipy.spatial.distance
import scipy.special
import scipy.stats

import penstock as ps

A = np.random.default_rng(20).normal(size=(40, 5)).astype(np.float32)
B = np.float32([0.25, 0.5, 0.25])


def close(got: Any, wanted: Any) -> None:
    """The result is an array of the device, with the values that NumPy's arrays give."""
    assert isinstance(got, ps.Array), f"{type(got)} came back"
    np.testing.assert_allclose(got.numpy(), wanted, rtol=2e-4, atol=2e-4)


# SciPy's functions that compute with the array's own namespace.


def logsumexp(x: ps.Array) -> None:
    close(scipy.special.logsumexp(x, axis=0), scipy.special.logsumexp(A, axis=0))


def zscore(x: ps.Array) -> None:
    close(scipy.stats.zscore(x), scipy.stats.zscore(A))


def fftconvolve(x: ps.Array) -> None:
    made = scipy.signal.fftconvolve(x[:, 0], x.device.xp.asarray(B), mode="same")
    close(made, scipy.signal.fftconvolve(A[:, 0], B, mode="same"))


# SciPy's functions that call np.asarray: reads, which the receipt names.


def _reads(x: ps.Array, call: Callable[[], Any]) -> Any:
    x.device.synchronize()
    with ps.trace() as t:
        found = call()
    assert any(each.kind == "copy" and each.buffer == x.name for each in t.events), str(t)
    return found


def erf(x: ps.Array) -> None:
    close(_reads(x, lambda: scipy.special.erf(x)), scipy.special.erf(A))


def gaussian_filter(x: ps.Array) -> None:
    made = _reads(x, lambda: scipy.ndimage.gaussian_filter(x, 1.0))
    close(made, scipy.ndimage.gaussian_filter(A, 1.0))


def cdist(x: ps.Array) -> None:
    made = _reads(x, lambda: scipy.spatial.distance.cdist(x, x))
    np.testing.assert_allclose(made, scipy.spatial.distance.cdist(A, A), rtol=1e-4, atol=1e-4)


# scikit-learn.


def standard_scaler(x: ps.Array) -> None:
    from sklearn.preprocessing import StandardScaler

    close(StandardScaler().fit_transform(x), StandardScaler().fit_transform(A))


def pca(x: ps.Array) -> None:
    from sklearn.decomposition import PCA

    for solver in ("full", "covariance_eigh"):
        made, wanted = (PCA(2, svd_solver=solver).fit(each) for each in (x, A))
        close(made.explained_variance_, wanted.explained_variance_)
        close(made.transform(x), wanted.transform(A))


def ridge(x: ps.Array) -> None:
    from sklearn.linear_model import Ridge

    made = Ridge(solver="svd").fit(x, x[:, 0] * 2 + 1)
    wanted = Ridge(solver="svd").fit(A, A[:, 0] * 2 + 1)
    close(made.coef_, wanted.coef_)
    close(made.predict(x), wanted.predict(A))


def euclidean_distances(x: ps.Array) -> None:
    from sklearn.metrics.pairwise import euclidean_distances as distances

    close(distances(x), distances(A))


SCIPY = (logsumexp, zscore, fftconvolve, erf, gaussian_filter, cdist)
SKLEARN = (standard_scaler, pca, ridge, euclidean_distances)


def main() -> None:
    outcomes = {}
    try:
        import sklearn
    except ImportError:
        calls: tuple[Callable[[ps.Array], None], ...] = SCIPY
    else:
        sklearn.set_config(array_api_dispatch=True)
        calls = (*SCIPY, *SKLEARN)
    with ps.Device(sys.argv[1]) as dev:
        x = dev.array(A, name="table")
        for call in calls:
            try:
                call(x)
            except Exception:
                outcomes[call.__name__] = traceback.format_exc()
            else:
                outcomes[call.__name__] = "ok"
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
