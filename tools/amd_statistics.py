"""Register use of the language-model kernels on AMD GPUs, without such a GPU.

`python -m tools.amd_statistics` compiles every kernel with RADV, Mesa's driver for AMD GPUs; with
`--for-gpus`, those that GPUs run; with `--arrays`, the kernels of matrix products and random
numbers instead.
RADV_FORCE_FAMILY makes the driver act as if a GPU of that family were present: it compiles, but
cannot run anything. The driver reports how many registers each kernel uses, and whether it spills:
a spilled value is kept in memory instead of a register, which costs far more than it saves.

Each family is compiled in a process of its own, because a driver reads its environment only once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.llm.kernels import Shader
from penstock.llm.shaders import FOR_CPUS, every_kernel
from penstock.ops import product_plans, random
from penstock.shader.glsl import compile_glsl
from penstock.shader.interface import Interface
from penstock.shader.spirv import reflect

Row = dict[str, Any]

ROOT = Path(__file__).parent.parent
_SHADERS = Path(product_plans.__file__).with_name("shaders")

#: By architecture, the driver's names for it. The first that the driver accepts is used.
FAMILIES = {"gfx1100": ("gfx1100", "navi31"), "gfx1030": ("navi21", "gfx1030")}

#: The columns of the table, by the driver's name of the statistic.
STATISTICS = {
    "VGPRs": "vgprs", "SGPRs": "sgprs", "Spilled VGPRs": "spilled_vgprs",
    "Spilled SGPRs": "spilled_sgprs", "Code size": "code_bytes", "Instructions": "instructions",
    "Scratch size": "scratch_bytes", "LDS size": "shared_bytes",
    "Subgroups per SIMD": "waves_per_simd",
}  # fmt: skip


class NoCompiler(ps.Error, OSError):
    """RADV is not installed, or does not support the requested family."""


def driver_file() -> Path | None:
    """Find the manifest of RADV in the directories that the Vulkan loader searches."""
    data = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    config = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    roots = [*config.split(":"), "/etc", *data.split(":")]
    for root in roots:
        for path in sorted(Path(root, "vulkan", "icd.d").glob("*.json")):
            try:
                library = json.loads(path.read_text())["ICD"]["library_path"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            # There may be one per processor architecture; take one whose library exists here.
            if "vulkan_radeon" in str(library) and ("/" not in library or Path(library).exists()):
                return path
    return None


def is_for_gpus(shader: Shader) -> bool:
    """Whether GPUs run it.

    Windows, lanes that take whole rows, and attention of one token through texels are for CPU
    drivers, and made to measure for them.
    """
    return not any(
        word in shader.name for word in ("windowed", " rows ", " TEXELS_EACH=", FOR_CPUS)
    )


def statistics(
    family: str, only: str = "", *, arrays: bool = False, for_gpus: bool = False, every: int = 1
) -> list[Row]:
    """Compile kernels with `only` in their names for a family of GPUs; return a row for each.

    With `for_gpus`, leave out the kernels that only CPU drivers run; of the rest, take the n-th.
    """
    manifest = driver_file()
    if manifest is None:
        raise NoCompiler("RADV is not installed; on Debian and Ubuntu: mesa-vulkan-drivers")
    said = ""
    for name in FAMILIES.get(family, (family,)):
        # New loaders read the first variable, old ones the second.
        files = {"VK_DRIVER_FILES": str(manifest), "VK_ICD_FILENAMES": str(manifest)}
        settings = {
            **os.environ,
            **files,
            "RADV_FORCE_FAMILY": name,
            "VK_LOADER_LAYERS_DISABLE": "*",
        }
        settings.pop("VK_ADD_DRIVER_FILES", None)
        command = [sys.executable, "-m", "tools.amd_statistics", "--here", "--only", only]
        command += ["--every", str(every)]
        command += ["--arrays"] if arrays else []
        command += ["--for-gpus"] if for_gpus else []
        run = subprocess.run(
            command, env=settings, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if run.returncode == 0:
            rows: list[Row] = json.loads(run.stdout)
            return rows
        said = run.stderr.strip()
    raise NoCompiler(f"RADV compiles nothing for {family}: {said or 'no reason given'}")


def kernels_of_arrays() -> Iterator[Shader]:
    """The kernels of products and random numbers as GPUs run them."""
    for shader, defines in product_plans.every_variant():
        subgroup = defines.keys() & {"TEXELS"} or ("ALONG" in defines and "TREE" not in defines)
        if shader not in ("product_lanes", "product_pack") and not subgroup:
            size = {} if shader == "product_shared" else {"local_size_x": 64}
            name = " ".join([shader, *(f"{key}={value}" for key, value in defines.items())])
            yield Shader(name, _SHADERS / f"{shader}.comp", defines, size)
    for defines in random.every_variant():
        name = " ".join(["random", *defines])
        constants = {"local_size_x": 256, "MODE": 3, "SIZE": 8 if defines else 4, "SIGNED": True}
        yield Shader(name, _SHADERS / "random.comp", defines, constants)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.amd_statistics", description=__doc__)
    parser.add_argument("--family", action="append", help=f"{', '.join(FAMILIES)} (default: all)")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="kernels with this in their name"
    )
    parser.add_argument("--arrays", action="store_true", help="kernels of products and numbers")
    parser.add_argument("--for-gpus", action="store_true", help="no kernels that are for CPUs")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one in N kernels")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.here:
        listed = kernels_of_arrays() if chosen.arrays else every_kernel()
        kernels = [shader for shader in listed if chosen.only in shader.name]
        kernels = [one for one in kernels if not chosen.for_gpus or is_for_gpus(one)]
        print(json.dumps(list(_compile_all(kernels[:: chosen.every]))))
        return 0
    try:
        found = {
            name: statistics(
                name,
                chosen.only,
                arrays=chosen.arrays,
                for_gpus=chosen.for_gpus,
                every=chosen.every,
            )
            for name in chosen.family or FAMILIES
        }
    except NoCompiler as error:
        print(f"tools.amd_statistics: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2) if chosen.json else _as_text(found))
    return 0


def _as_text(found: dict[str, list[Row]]) -> str:
    blocks = []
    for family, rows in found.items():
        columns = [
            "kernel",
            *dict.fromkeys(name for row in rows for name in row if name != "kernel"),
        ]
        lines = [columns, *([str(row.get(name, "-")) for name in columns] for row in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        table = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in lines
        ]
        spilling = sum(_spills(row) for row in rows)
        blocks.append("\n".join([f"{family}: {len(rows)} kernels, {spilling} spill", *table]))
    return "\n\n".join(blocks)


def _spills(row: Row) -> bool:
    return bool(row.get("spilled_vgprs") or row.get("spilled_sgprs"))


# Compiling, in the child process. Uses only the declarations of the `vulkan` package, for the
# reasons given in penstock.driver.vulkan.api.


def _compile_all(kernels: Iterable[Shader]) -> Iterator[Row]:
    compiler = _Compiler()
    for shader in kernels:
        yield {"kernel": shader.name, **compiler.compile(shader)}


class _Compiler:
    """Creates pipelines on the only device of the only driver, and reads their statistics."""

    def __init__(self) -> None:
        from vulkan._vulkan import ffi, lib

        self._ffi, self._lib = ffi, lib
        self._kept: list[Any] = []
        self._device = self._open()
        self._statistics = self._function("vkGetPipelineExecutableStatisticsKHR")

    def compile(self, shader: Shader) -> Row:
        ffi, lib = self._ffi, self._lib
        code = compile_glsl(
            shader.path.read_text("utf-8"), name=shader.name, defines=shader.defines,
            include_dir=shader.path.parent,
        )  # fmt: skip
        interface = reflect(code)
        words = ffi.new("uint32_t[]", len(code) // 4)
        ffi.buffer(words)[:] = code
        module = self._made("VkShaderModule", "SHADER_MODULE", codeSize=len(code), pCode=words)
        create = self._new(
            "VkComputePipelineCreateInfo", "COMPUTE_PIPELINE_CREATE_INFO",
            flags=lib.VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR, layout=self._layout(interface),
        )  # fmt: skip
        stage = create.stage
        stage.sType = lib.VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO
        stage.stage = lib.VK_SHADER_STAGE_COMPUTE_BIT
        stage.module = module
        stage.pName = self._keep(ffi.new("char[]", b"main"))
        stage.pSpecializationInfo = self._constants(shader, interface)
        pipeline = ffi.new("VkPipeline *")
        self._check(
            lib.vkCreateComputePipelines(
                self._device, ffi.NULL, 1, create, ffi.NULL, pipeline
            ),
            f"compiling {shader.name}",
        )  # fmt: skip
        row = self._read(pipeline[0])
        lib.vkDestroyPipeline(self._device, pipeline[0], ffi.NULL)
        return row

    def _read(self, pipeline: Any) -> Row:
        ffi = self._ffi
        # A compute pipeline has a single executable.
        info = self._new("VkPipelineExecutableInfoKHR", "PIPELINE_EXECUTABLE_INFO_KHR")
        info.pipeline = pipeline
        count = ffi.new("uint32_t *")
        self._check(self._statistics(self._device, info, count, ffi.NULL), "statistics")
        found = ffi.new("VkPipelineExecutableStatisticKHR[]", count[0])
        for one in found:
            one.sType = self._lib.VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR
        self._check(self._statistics(self._device, info, count, found), "statistics")
        values = {ffi.string(one.name).decode(): int(one.value.u64) for one in found}
        return {ours: values[theirs] for theirs, ours in STATISTICS.items() if theirs in values}

    def _layout(self, interface: Interface) -> Any:
        ffi, lib = self._ffi, self._lib
        bindings = ffi.new("VkDescriptorSetLayoutBinding[]", max(1, len(interface.bindings)))
        for slot, binding in zip(bindings, interface.bindings, strict=False):
            uniform = binding.kind == "uniform"
            slot.binding = binding.binding
            slot.descriptorType = (
                lib.VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER
                if uniform
                else lib.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
            )
            slot.descriptorCount = 1
            slot.stageFlags = lib.VK_SHADER_STAGE_COMPUTE_BIT
        of_set = self._made(
            "VkDescriptorSetLayout", "DESCRIPTOR_SET_LAYOUT", bindingCount=len(interface.bindings),
            pBindings=bindings,
        )  # fmt: skip
        ranges = ffi.new("VkPushConstantRange *")
        ranges.stageFlags = lib.VK_SHADER_STAGE_COMPUTE_BIT
        ranges.size = interface.push_size
        sets = ffi.new("VkDescriptorSetLayout[]", [of_set])
        return self._made(
            "VkPipelineLayout", "PIPELINE_LAYOUT", setLayoutCount=1, pSetLayouts=sets,
            pushConstantRangeCount=int(interface.push_size > 0), pPushConstantRanges=ranges,
        )  # fmt: skip

    def _constants(self, shader: Shader, interface: Interface) -> Any:
        ffi = self._ffi
        numbers = {constant.name: constant.id for constant in interface.constants}
        entries = ffi.new("VkSpecializationMapEntry[]", max(1, len(shader.constants)))
        values = ffi.new("uint32_t[]", [*shader.constants.values(), 0])
        for at, (entry, name) in enumerate(zip(entries, shader.constants, strict=False)):
            entry.constantID, entry.offset, entry.size = numbers[name], 4 * at, 4
        info = ffi.new("VkSpecializationInfo *")
        info.mapEntryCount, info.pMapEntries = len(shader.constants), entries
        info.dataSize, info.pData = 4 * len(shader.constants), values
        self._kept += [entries, values]
        return self._keep(info)

    def _open(self) -> Any:
        ffi, lib = self._ffi, self._lib
        application = self._new(
            "VkApplicationInfo", "APPLICATION_INFO", apiVersion=1 << 22 | 2 << 12
        )
        create = self._new("VkInstanceCreateInfo", "INSTANCE_CREATE_INFO")
        create.pApplicationInfo = application
        instance = ffi.new("VkInstance *")
        self._check(lib.vkCreateInstance(create, ffi.NULL, instance), "opening the driver")
        count, physical = ffi.new("uint32_t *", 1), ffi.new("VkPhysicalDevice *")
        self._check(lib.vkEnumeratePhysicalDevices(instance[0], count, physical), "finding the GPU")
        if not count[0]:
            raise NoCompiler("the driver has no GPU")
        # Enable every feature that the device supports, because shaders may need any of them.
        dots = self._new(
            "VkPhysicalDeviceShaderIntegerDotProductFeatures",
            "PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES",
        )
        twelve = self._new(
            "VkPhysicalDeviceVulkan12Features", "PHYSICAL_DEVICE_VULKAN_1_2_FEATURES", pNext=dots
        )
        eleven = self._new(
            "VkPhysicalDeviceVulkan11Features", "PHYSICAL_DEVICE_VULKAN_1_1_FEATURES", pNext=twelve
        )
        told = self._new(
            "VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR",
            "PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR", pNext=eleven,
        )  # fmt: skip
        features = self._new("VkPhysicalDeviceFeatures2", "PHYSICAL_DEVICE_FEATURES_2", pNext=told)
        lib.vkGetPhysicalDeviceFeatures2(physical[0], features)
        if not told.pipelineExecutableInfo:
            raise NoCompiler("the driver reports no statistics of pipelines")
        queue = self._new("VkDeviceQueueCreateInfo", "DEVICE_QUEUE_CREATE_INFO", queueCount=1)
        queue.pQueuePriorities = self._keep(ffi.new("float[]", [1.0]))
        extensions = [
            self._keep(ffi.new("char[]", name))
            for name in (
                b"VK_KHR_pipeline_executable_properties", b"VK_KHR_shader_integer_dot_product",
            )
        ]  # fmt: skip
        names = self._keep(ffi.new("char *[]", extensions))
        made = self._new(
            "VkDeviceCreateInfo", "DEVICE_CREATE_INFO", pNext=features, queueCreateInfoCount=1,
            pQueueCreateInfos=queue, enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=names,
        )  # fmt: skip
        device = ffi.new("VkDevice *")
        self._check(lib.vkCreateDevice(physical[0], made, ffi.NULL, device), "opening the GPU")
        return device[0]

    def _function(self, name: str) -> Any:
        address = self._lib.vkGetDeviceProcAddr(self._device, name.encode())
        return self._ffi.cast(f"PFN_{name}", address)

    def _made(self, ctype: str, tag: str, **members: Any) -> Any:
        """Create a Vulkan object from the members of its create structure."""
        create = self._new(f"{ctype}CreateInfo", f"{tag}_CREATE_INFO", **members)
        made = self._ffi.new(f"{ctype} *")
        call = getattr(self._lib, f"vkCreate{ctype.removeprefix('Vk')}")
        self._check(call(self._device, create, self._ffi.NULL, made), f"making a {ctype}")
        return made[0]

    def _new(self, ctype: str, tag: str, **members: Any) -> Any:
        made = self._keep(self._ffi.new(f"{ctype} *"))
        made.sType = getattr(self._lib, f"VK_STRUCTURE_TYPE_{tag}")
        for name, value in members.items():
            setattr(made, name, self._keep(value))
        return made

    def _keep(self, made: Any) -> Any:
        """Hold a reference: cffi frees memory without one, even if a structure points to it."""
        self._kept.append(made)
        return made

    def _check(self, result: int, what: str) -> None:
        if result < 0:
            raise NoCompiler(f"{what} failed with {result}")


if __name__ == "__main__":
    sys.exit(main())
