"""Known vulnerabilities of the packages that are installed."""

import importlib.util
import subprocess
import sys

import pytest


@pytest.mark.long
def test_no_installed_package_has_a_known_vulnerability():
    if importlib.util.find_spec("pip_audit") is None:
        pytest.skip("pip-audit is not installed: pip install pip-audit")
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable"]
    ended = subprocess.run(
        [*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False
    )
    found = "known vulnerabilit" in ended.stdout + ended.stderr
    if ended.returncode and not found:
        pytest.skip(f"pip-audit can't ask its service: {ended.stderr.strip()[-200:]}")
    assert ended.returncode == 0, ended.stdout
