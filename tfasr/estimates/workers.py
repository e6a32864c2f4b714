"""What a step takes if several workers share each batch; see docs/estimate.md."""

# Share of a link's stated speed that gradients use: Ethernet, IP and TCP headers take 6
# %, and TCP starts slowly after each step's pause.
DELIVERED = 0.85

# Of each message, in one rack.
LATENCY_S = 50e-6


def gradient_bytes(parameters: int, exchange: str) -> int:
    """Returns the bytes of a model's gradients, as ``gradient_exchange`` sends them."""
    bytes_each = 2 if exchange == "bfloat16" else 4
    return bytes_each * parameters


def step_of_workers(
    count: int, step_s: float, fixed_s: float, gradients: float, link_gbit_s: float
) -> float:
    """Returns the seconds of a step on a global batch that ``count`` workers share.

    Each computes its part of the batch, then all sum their gradients in a ring, with
    nothing hidden behind the computation: ``2 (N - 1)`` messages, each of 1/N of the
    gradients.

    Args:
        count: the number of workers, N.
        step_s: a step of one worker on the whole batch.
        fixed_s: the part of it that doesn't depend on the batch.
        gradients: bytes of all gradients.
        link_gbit_s: the stated speed of the link between workers.

    Source: P. Patarasuk and X. Yuan, Bandwidth Optimal All-reduce Algorithms for
    Clusters of Workstations, 2009, section 3.
    """
    messages = 2 * (count - 1)
    per_s = DELIVERED * link_gbit_s * 1e9 / 8
    exchange_s = messages * (LATENCY_S + gradients / count / per_s)

    return fixed_s + (step_s - fixed_s) / count + exchange_s
