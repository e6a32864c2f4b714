from tfasr.api import *  # noqa: F403
