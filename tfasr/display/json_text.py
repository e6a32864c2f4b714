"""JSON for programs: numbers that are not finite become null."""

import json
import math
from typing import Any


def to_json_text(value: Any) -> str:
    """Returns JSON values as an indented document; JSON knows neither NaN nor infinity."""
    return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
