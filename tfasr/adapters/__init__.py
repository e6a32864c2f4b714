"""Callbacks of other trainers that write a `tfasr.Recorder`'s run.

Each module imports its framework and nothing else does: ``tfasr.adapters.keras``,
``tfasr.adapters.lightning``, ``tfasr.adapters.hugging_face``. Of a distributed training, the first
process alone has a recorder and the callback.
"""
