"""Known vulnerabilities of the packages that are installed."""

import importlib.util
import json
import subprocess
import sys

import pytest


@pytest.mark.long
def test_no_installed_package_has_a_known_vulnerability():
    if importlib.util.find_spec("pip_audit") is None:
        pytest.skip(
            "nothing was audited: pip-audit is not installed (pip install pip-audit)"
        )
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable"]
    ended = subprocess.run(
        [*command, "--progress-spinner", "off", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        packages = json.loads(ended.stdout)["dependencies"]
    except ValueError:
        cause = ended.stderr.strip().splitlines()[-1:]
        pytest.skip(f"nothing was audited: pip-audit can't reach its database: {cause}")

    audited = [package for package in packages if "vulns" in package]
    if not audited:
        pytest.skip(
            f"nothing was audited: pip-audit skipped all {len(packages)} packages"
        )
    vulnerable = {
        package["name"]: [known["id"] for known in package["vulns"]]
        for package in audited
        if package["vulns"]
    }
    assert not vulnerable, f"of {len(audited)} audited packages: {vulnerable}"
