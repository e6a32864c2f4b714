"""Programs that try to break tfasr: kills, power loss, full disks, wrong clocks, little memory.

They are commands of the repository, not part of the wheel: ``python -m campaigns.torture``,
``python -m campaigns.power_loss``, ``python -m campaigns.faults``. What they found is in
``docs/reliability.md``. They need Linux and Python 3.11.
"""
