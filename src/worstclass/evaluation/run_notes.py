"""What to know of a run before its numbers are believed: of its data, of its training, and of its base."""

from worstclass.config.keys import can_have_base
from worstclass.evaluation.checks import COPIES
from worstclass.evaluation.data_check import (
    copy_note,
    count_notes,
    mirror_note,
    name_note,
    shift_note,
    size_note,
    split_note,
)
from worstclass.inputs.names import RESIZED, data_kind
from worstclass.inputs.radius import radius_notes
from worstclass.runs.duration import expected_seconds, with_model
from worstclass.runs.notes import average_notes, training_notes
from worstclass.runs.run import Run

FAST = 0.02  # twenty times what AdamW usually takes
LONG = 3600.0  # seconds of training that are told before
FEW_STEPS, ENOUGH_STEPS, BATCHES = 300, 500, (64, 32, 16, 8)
LEFT_OUT = 0.2  # of the images of an epoch, in a last batch that is not full
SMALL = "small-cnn"
USUAL, LARGE = 32, 64  # pixels of a side: CIFAR's, and four times as many in all


def start_notes(run: Run) -> list[str]:
    """What is known of its data before the first step, as `worstclass data` says it; nothing of an older run."""
    counts = run.about.get("class_counts", {})
    if not {"train", "valid"} <= set(counts):
        return []
    own = run.about.get("own_validation", False)
    left_out = list(run.about.get("data_notes", []))  # or enlarged
    lines = rate_note(run) + radius_note(run) + left_out
    lines += name_note(run.class_names) + split_note(counts, run.config.valid_fraction, own=own)
    lines += count_notes(run.class_names, counts)
    if shape := run.about.get("test_shape"):
        lines += size_note([run.about["in_channels"], *run.about["image_size"]], shape)
    copies = run.about.get("valid_in_train", 0)
    if copies > COPIES * sum(counts["valid"]):
        lines += copy_note("train", "valid", copies)
    if run.config.flip:
        lines += mirror_note(run.class_names, run.about.get("mirrored", []))
    return lines + shift_note(run.class_names, run.about.get("valid_shift", []), own=own)


def base_note(run: Run) -> list[str]:
    """Class weights that nothing will be compared with, where they may do harm; before a run begins."""
    alone = run.config.base_start is None and can_have_base(run.config.model_dump()) and run.fork is None
    if not alone or not count_notes(run.class_names, run.about["class_counts"]):
        return []
    return ["class weights may do harm on such data: --with-base trains a baseline too, and keeps the better."]


def rate_note(run: Run) -> list[str]:
    """A learning rate of SGD that was left to AdamW, whose steps are as long as the rate itself."""
    if run.config.optimizer != "adamw" or run.config.lr < FAST:
        return []
    return [f"lr = {run.config.lr:g} is a rate for SGD: AdamW usually takes 1e-3."]


def radius_note(run: Run) -> list[str]:
    """A radius that was hardly meant; of a run that is not attacked in training it is where it is validated."""
    return radius_notes(run.config.eps, run.config.norm)


def cost_note(run: Run) -> list[str]:
    """What large images cost, before the first step."""
    height, width = run.about["image_size"]
    if height * width <= LARGE**2:
        return []
    times = height * width / USUAL**2
    smaller = f" image_size = {LARGE} makes them smaller." if data_kind(run.config.data) in RESIZED else ""
    return [
        f"images of {height} x {width} pixels: a step takes about {times:.0f} times as long, and {times:.0f} times the "
        f"memory, as with {USUAL} x {USUAL}.{smaller}"
    ]


def step_note(run: Run) -> list[str]:
    """Too few steps to learn much, or many images that each epoch leaves out, before the first step."""
    size, epochs = run.about["train_images"], run.config.epochs
    batch = min(run.config.batch_size, size)
    steps, rest = epochs * (size // batch), size % batch
    if steps >= FEW_STEPS and rest <= LEFT_OUT * size:
        return []
    fit = [each for each in BATCHES if each < batch and epochs * (size // each) >= ENOUGH_STEPS] or [BATCHES[-1]]
    advice = f"--set batch_size={fit[0]}" if fit[0] < batch else "more epochs"
    out = f", and leaves {rest} of {size} images out of each epoch (a last, partial batch)" if rest else ""
    return [f"training takes {steps} steps of {batch} images in all{out}: try {advice}."]


def time_note(run: Run, done: int = 0) -> list[str]:
    """How long the epochs after `done` take on a CPU, where that is long, before the first step of a process."""
    seconds = expected_seconds(run, done)
    if seconds < LONG:
        return []
    smaller = ""
    if run.config.model != SMALL and not done:
        less = expected_seconds(with_model(run, SMALL), done)
        smaller = f", with --set model={SMALL} about {duration(less)}"
    return [f"on this CPU the training takes about {duration(seconds)}{smaller}; a GPU is what it is meant for."]


def duration(seconds: float) -> str:
    """A length of time as a person says it: 40 minutes, 5 hours, 3 days."""
    minutes = max(1, round(seconds / 60))
    for size, unit, most in ((1, "minute", 90), (60, "hour", 48 * 60)):
        if minutes < most:
            count = round(minutes / size)
            return f"{count} {unit}{'s' * (count > 1)}"
    return f"{round(minutes / 60 / 24)} days"


def run_notes(run: Run) -> list[str]:
    """All of it, as the end of `train` and the report show it."""
    base = [f"compared with its base: {run.about['base']['verdict']}"] if "base" in run.about else []
    adjusted = [f"logit adjustment: {run.about['adjustment']['verdict']}"] if "adjustment" in run.about else []
    averaged, log = run.config.average != "none", run.log
    said = training_notes(log, run.about, run.config.select, averaged=averaged)
    return start_notes(run) + base + adjusted + list(said.values()) + average_notes(log)
