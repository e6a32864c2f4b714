"""What a study's gin file binds: its experiments, their seeds, and what is measured of them."""

from tfasr.config import config_class, require

SYNTHETIC = "synthetic"


@config_class
class ExperimentConfig:
    """One configuration of a study, trained once for each seed.

    Its bindings stand in a scope of its name: ``sys1/ExperimentConfig.gin_files = ('demo.gin',)``.
    Those without a scope are the default of all experiments.
    """

    # Presets or files as of ``tfasr train --gin_file``; files of one's own are looked for beside
    # the study's file too
    gin_files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()  # lines of gin that override them
    seeds: tuple[int, ...] = ()  # of its runs; () takes the study's
    label: str = ""  # what reports call it; "" takes its name
    part: str = "runs"  # one table, compared with its first experiment
    # Of a source of `tfasr.tta.published.tables`, such as "Table 4": stands beside its part's times
    published_table: str = ""

    def check(self) -> None:
        require(bool(self.gin_files), self, "gin_files", "at least one preset or file")
        require(len(set(self.seeds)) == len(self.seeds), self, "seeds", "different from each other")


@config_class
class StudyConfig:
    """A list of experiments, and what is measured of their runs."""

    # Their names, each a scope of `ExperimentConfig`, in the order of the tables
    experiments: tuple[str, ...] = ()
    title: str = "A study"  # the report's heading
    seeds: tuple[int, ...] = (1,)  # of every experiment that names none of its own
    # "synthetic" makes and prepares the demo's speech in the study's folder; "" wants
    # ``--shard_dir``
    corpus: str = ""
    final_splits: tuple[str, ...] = ()  # on which every run's best checkpoint is scored at the end
    final_beam_width: int = 512  # of word beam search then
    beam_widths: tuple[int, ...] = ()  # of one run's timed evaluations, ascending; () leaves it out
    beam_widths_of: str = ""  # the experiment of that run; "" takes the first one
    beam_widths_split: str = "validation"  # the split of that evaluation
    published: str = ""  # whose published results stand beside one's own; "" for none

    def check(self) -> None:
        require(bool(self.experiments), self, "experiments", "at least one name")
        names = self.experiments
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                "StudyConfig.experiments must name every experiment once. Received twice: "
                f"{', '.join(twice)}."
            )
        strange = [name for name in names if not name.isidentifier()]
        if strange:
            raise ValueError(
                "StudyConfig.experiments must be names of letters, digits and _, since each is a "
                f"scope of gin and a folder. Received: {strange[0]!r}."
            )
        require(bool(self.seeds), self, "seeds", "at least one")
        require(len(set(self.seeds)) == len(self.seeds), self, "seeds", "different from each other")
        require(self.corpus in ("", SYNTHETIC), self, "corpus", f"'' or '{SYNTHETIC}'")
        widths = [*self.beam_widths, self.final_beam_width]
        require(min(widths) > 0, self, "beam_widths", "at least 1, and final_beam_width too")
