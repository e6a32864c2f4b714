from tfasr.api import *  # noqa: F403
from tfasr.api import __version__ as __version__
