"""Packages the presets of ``gin/`` as ``tfasr.presets``; everything else stands in
setup.cfg.
"""

import sys
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import find_namespace_packages, setup

PRESETS = Path("gin")
WORD_BEAM = Path("tfasr", "decoding", "_word_beam")
# Without contraction a product and a sum round as they are written, on every machine.
EXACT = [] if sys.platform == "win32" else ["-O3", "-ffp-contract=off", "-pthread"]

preset_folders = {
    "tfasr.presets": str(PRESETS),
    **{
        f"tfasr.presets.{folder.name}": str(folder)
        for folder in sorted(PRESETS.iterdir())
        if folder.is_dir()
    },
}

word_beam_core = Pybind11Extension(
    "tfasr.decoding._word_beam_core",
    # fuzz.cpp is a program of its own: see sanitize.mk beside it.
    sorted(str(path) for path in WORD_BEAM.glob("*.cpp") if path.name != "fuzz.cpp"),
    depends=sorted(str(path) for path in WORD_BEAM.glob("*.hpp")),
    cxx_std=17,
    extra_compile_args=EXACT,
    extra_link_args=[] if sys.platform == "win32" else ["-pthread"],
)

RECURRENT = Path("tfasr", "layers", "_recurrent")
OF_FUZZING = ("fuzz.cpp", "missing_instructions.cpp")
recurrent_core = Pybind11Extension(
    "tfasr.layers._recurrent_core",
    sorted(
        str(path) for path in RECURRENT.glob("*.cpp") if path.name not in OF_FUZZING
    ),
    depends=sorted(
        str(path) for kind in ("*.hpp", "*.inc") for path in RECURRENT.glob(kind)
    ),
    cxx_std=17,
    extra_compile_args=["-O3", "-ffp-contract=fast", "-pthread"],
    # TensorFlow's functions are looked up while it runs; before glibc 2.34 that took a
    # library.
    extra_link_args=["-pthread", "-ldl"],
)

# Folders without an __init__.py are packages too; those that begin with _ hold C++.
python_packages = find_namespace_packages(
    include=["tfasr", "tfasr.*"], exclude=["*._*"]
)
# An editable install is the clone itself on Python's path, where its presets are found
# too. With setuptools' other way, an import hook, "import tfasr" in the clone's parent
# folder would find the clone, a folder called tfasr, before it asks the hook.
editable = "editable_wheel" in sys.argv
ParallelCompile().install()
setup(
    packages=python_packages if editable else [*python_packages, *preset_folders],
    package_dir={"": "."} if editable else preset_folders,
    package_data={
        "tfasr": ["py.typed", "__init__.pyi"],
        **dict.fromkeys(preset_folders, ["*.gin"]),
        "tfasr.reports": ["page.css", "page.js"],
        "tfasr.corpora": ["languages.json"],
        "tfasr.serving": ["page.html"],
        "tfasr.estimates.catalogue": ["*.json"],
        "tfasr.tta.published": ["*.json"],
    },
    # Vector types are GCC's and Clang's; elsewhere the layers use loops in TensorFlow.
    ext_modules=[
        word_beam_core,
        *([] if sys.platform == "win32" else [recurrent_core]),
    ],
    cmdclass={"build_ext": build_ext},
)
