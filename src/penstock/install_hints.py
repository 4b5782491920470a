"""What to install for what is missing, in the words of this machine's package manager.

Errors and `penstock doctor` tell the same commands from here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_OS_RELEASE = Path("/etc/os-release")


class Family(NamedTuple):
    """Distributions with the same package manager and names of packages."""

    title: str
    install: str  # the command, before the names
    packages: Mapping[str, str]  # by need


FAMILIES = {
    "debian": Family(
        "Debian, Ubuntu",
        "apt install",
        {
            "loader": "libvulkan1",
            "driver": "mesa-vulkan-drivers",
            "glsl": "glslc",
            "validation": "vulkan-validationlayers",
        },
    ),
    "fedora": Family(
        "Fedora",
        "dnf install",
        {
            "loader": "vulkan-loader",
            "driver": "mesa-vulkan-drivers",
            "glsl": "glslc",
            "validation": "vulkan-validation-layers",
        },
    ),
    "arch": Family(
        "Arch",
        "pacman -S",
        {
            "loader": "vulkan-icd-loader",
            "driver": "vulkan-swrast",
            "glsl": "shaderc",
            "validation": "vulkan-validation-layers",
        },
    ),
}


def commands(*needs: str) -> dict[str, str]:
    """What to type for these needs ("loader", "driver", "glsl", "validation"), by distribution.

    Only for this machine's, if it is one of the known.
    """
    here = family_of(_os_release(_OS_RELEASE))
    families = [FAMILIES[here]] if here else FAMILIES.values()
    return {
        family.title: f"{family.install} {' '.join(family.packages[need] for need in needs)}"
        for family in families
    }


def advice(*needs: str) -> str:
    """The same in one line, as a part of an error's message."""
    return "; ".join(f"on {title}: {command}" for title, command in commands(*needs).items())


def family_of(release: str) -> str | None:
    """Which of the families a machine with this os-release file belongs to."""
    fields = dict(
        line.split("=", 1) for line in release.splitlines() if "=" in line and line[0] != "#"
    )
    kinds = f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".replace('"', "").split()
    return next((kind for kind in kinds if kind in FAMILIES), None)


@functools.cache
def _os_release(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
