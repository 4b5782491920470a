"""Elementwise functions on HIP, over the stand-in: the same values as NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.ops.arithmetic import FUNCTIONS
from tests.hip.standin import StandIn
from tests.xp.test_elementwise import DTYPES, assert_close, operands_of, values


def test_functions_are_numpys(standin_library: StandIn) -> None:
    """A few of each kind: every kernel is compiled on its own here."""
    cases = (
        ("add", "int8"), ("multiply", "complex64"), ("sin", "float32"), ("exp", "float64"),
        ("floor_divide", "int64"), ("where", "float16"), ("less", "uint64"), ("abs", "complex128"),
        ("logical_not", "bool"), ("clip", "int16"),
    )  # fmt: skip
    with standin_library.chosen(integrated=1) as hip, hip.device() as dev:
        for name, dtype in cases:
            function = FUNCTIONS[name]
            host = operands_of(function, dtype, 37)
            arrays = [dev.array(np.repeat(each, 2))[::2] for each in host]
            assert_close(getattr(dev.xp, name)(*arrays), np.asarray(function.reference(*host)))
        x = dev.array(values("float32", 30).reshape(5, 6))
        assert_close(x.T * 2 - x[0].reshape(6, 1), x.numpy().T * 2 - x.numpy()[0].reshape(6, 1))


@pytest.mark.parametrize("dtype", DTYPES[::3])
def test_conversions_are_numpys(dtype: str, standin_library: StandIn) -> None:
    with standin_library.chosen(integrated=1) as hip, hip.device() as dev:
        host = np.abs(values("float32", 20))
        assert_close(dev.array(host).astype(dtype), host.astype(dtype))
