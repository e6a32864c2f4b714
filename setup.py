"""Packages the presets of ``gin/`` as ``tfasr.presets``; everything else stands in setup.cfg."""

from pathlib import Path

from setuptools import find_packages, setup

PRESETS = Path("gin")

preset_folders = {
    "tfasr.presets": str(PRESETS),
    **{
        f"tfasr.presets.{folder.name}": str(folder)
        for folder in sorted(PRESETS.iterdir())
        if folder.is_dir()
    },
}

setup(
    packages=[*find_packages(include=["tfasr", "tfasr.*"]), *preset_folders],
    package_dir=preset_folders,
    package_data=dict.fromkeys(preset_folders, ["*.gin"]),
)
