"""NVIDIA's management library, where there is one."""


class nvml:  # noqa: N801 - a context manager, read as one
    """Opens NVML; gives None where there is no NVIDIA driver or no nvidia-ml-py.

    Attributes:
        problem: why it gives None; "" where it does not.
    """

    def __init__(self):
        self._library = None
        self.problem = ""

    def __enter__(self):
        try:
            import pynvml

            pynvml.nvmlInit()
        except ImportError:
            self.problem = "nvidia-ml-py is not installed: pip install 'tfasr[gpu]'"
        except Exception as error:  # noqa: BLE001 - NVML's own class is known only once it loads
            self.problem = f"NVML does not start: {error}"
        else:
            self._library = pynvml
        return self._library

    def __exit__(self, *_):
        if self._library is not None:
            self._library.nvmlShutdown()
