"""What the campaigns are tried on: each guard that is taken away is still where it was."""

from campaigns.sabotage import ROOT, SABOTAGES


def test_every_sabotage_finds_its_guard_once():
    for one in SABOTAGES:
        text = (ROOT / one.file).read_text()
        assert text.count(one.before) == 1, one
        compile(text.replace(one.before, one.after), one.file, "exec")
