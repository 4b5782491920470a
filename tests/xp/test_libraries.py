"""Libraries that take any arrays compute with those of a device, and return such arrays.

All are in the extra `dev`. SciPy and scikit-learn are called in a process of their own, because
they read SCIPY_ARRAY_API when they are imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

ROOT = Path(__file__).parent.parent.parent
A = np.random.default_rng(20).normal(size=(12, 4)).astype(np.float32)


def close(got: ps.Array, wanted: Any) -> None:
    assert isinstance(got, ps.Array)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_array_api_compat_knows_the_namespace(dev: ps.Device) -> None:
    compat = pytest.importorskip("array_api_compat", reason="pip install array-api-compat")
    x = dev.xp.asarray(A)
    assert compat.array_namespace(x, x[0], 1.0) is dev.xp
    assert compat.is_array_api_obj(x)
    assert compat.is_writeable_array(x)
    assert not compat.is_lazy_array(x)
    assert compat.device(x) is dev
    assert compat.to_device(x, dev) is x
    assert compat.size(x) == A.size


@pytest.mark.parametrize(
    "name",
    [
        "apply_where", "at", "at_mask", "atleast_nd", "cov", "create_diagonal", "isclose", "kron",
        "nan_to_num", "nunique", "one_hot", "pad", "partition", "setdiff1d", "sinc", "union1d",
    ],
)  # fmt: skip
def test_array_api_extra(name: str, dev: ps.Device) -> None:
    extra = pytest.importorskip("array_api_extra", reason="pip install array-api-extra")
    xp, x = dev.xp, dev.xp.asarray(A)
    whole = np.array([3, 1, 2, 3])
    n = xp.asarray(whole)
    match name:
        case "apply_where":
            made = extra.apply_where(x > 0, x, xp.sqrt, fill_value=-1.0)
            close(made, np.where(A > 0, np.sqrt(np.abs(A)), -1))
        case "at":
            wanted = A.copy()
            wanted[1] += 3
            close(extra.at(x, 1).add(3.0, copy=True), wanted)
            close(x, A)
        case "at_mask":
            close(extra.at(x)[x < 0].set(0.0, copy=True), np.maximum(A, 0))
        case "atleast_nd":
            close(extra.atleast_nd(x, ndim=3), A[None])
        case "cov" if not dev.operations.abilities.float64:
            pytest.skip("it computes in float64")
        case "cov":
            close(extra.cov(x.T), np.cov(A.T))
        case "create_diagonal":
            close(extra.create_diagonal(x[0], offset=1), np.diag(A[0], 1))
        case "isclose":
            close(extra.isclose(x, x * (1 + 1e-6)), np.ones(A.shape, bool))
        case "kron":
            close(extra.kron(x[:2, :2], x[:3]), np.kron(A[:2, :2], A[:3]))
        case "nan_to_num":
            odd = np.float32([np.nan, np.inf, -np.inf, 1])
            close(extra.nan_to_num(xp.asarray(odd)), np.nan_to_num(odd))
        case "nunique":
            assert int(extra.nunique(n)) == 3
        case "one_hot":
            close(extra.one_hot(n, 4), np.eye(4, dtype=np.float32)[whole])
        case "pad":
            close(extra.pad(x, 2), np.pad(A, 2))
        case "partition":
            close(extra.partition(x, 5, axis=0)[5], np.partition(A, 5, axis=0)[5])
        case "setdiff1d":
            close(extra.setdiff1d(n, xp.asarray([2])), [1, 3])
        case "sinc":
            close(extra.sinc(x), np.sinc(A))
        case "union1d":
            close(extra.union1d(n, n + 2), [1, 2, 3, 4, 5])


def test_einops(dev: ps.Device) -> None:
    einops = pytest.importorskip("einops.array_api", reason="pip install einops")
    x = dev.xp.asarray(A)
    cube = A.reshape(3, 4, 4)
    close(einops.rearrange(x, "(a b) c -> b (a c)", a=3), cube.transpose(1, 0, 2).reshape(4, 12))
    close(einops.reduce(x, "(a b) c -> a c", "mean", a=3), cube.mean(1))
    close(einops.reduce(x, "a b -> 1 b", "max"), A.max(0, keepdims=True))
    close(einops.repeat(x, "a b -> (a n) b", n=2), np.repeat(A, 2, axis=0))
    packed, shapes = einops.pack([x, x[0]], "* c")
    close(packed, np.concatenate([A, A[:1]]))
    close(einops.unpack(packed, shapes, "* c")[1], A[0])


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """What became of each call in `library_calls`, in a process that sets SCIPY_ARRAY_API."""
    if importlib.util.find_spec("scipy") is None:
        pytest.skip("pip install scipy scikit-learn, to test with them")
    if not any("llvmpipe" in info.name for info in ps.devices()):
        pytest.skip("llvmpipe is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.xp.library_calls", "llvmpipe"], cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "src"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return made


@pytest.mark.parametrize(
    "call", ["logsumexp", "zscore", "fftconvolve", "erf", "gaussian_filter", "cdist"]
)
def test_scipy(call: str, outcomes: dict[str, str]) -> None:
    assert outcomes[call] == "ok", outcomes[call]


@pytest.mark.parametrize("call", ["standard_scaler", "pca", "ridge", "euclidean_distances"])
def test_scikit_learn(call: str, outcomes: dict[str, str]) -> None:
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("pip install scikit-learn, to test with it")
    assert outcomes[call] == "ok", outcomes[call]
