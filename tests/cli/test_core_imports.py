"""The training core needs torch and numpy alone."""

import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = '''
    import sys

    ALLOWED = {"worstclass", "torch", "torchgen", "functorch", "numpy"}
    ALLOWED |= {"typing_extensions", "sympy", "mpmath", "networkx", "fsspec", "filelock"}  # what those two import


    class Only:
        """A finder that finds the standard library and what is allowed; the rest might as well not be installed."""

        def __init__(self, finder):
            self.finder = finder

        def find_spec(self, name, path=None, target=None):
            top = name.partition(".")[0]
            allowed = top in ALLOWED or top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
            return self.finder.find_spec(name, path, target) if allowed else None

        def __getattr__(self, name):
            return getattr(self.finder, name)


    sys.meta_path[:] = [Only(finder) for finder in sys.meta_path]
    for name in ("pydantic", "typer", "rich", "safetensors", "scipy", "matplotlib", "jinja2", "PIL"):
        try:
            __import__(name)
        except ModuleNotFoundError:
            continue
        raise SystemExit(f"{name} is not blocked")

    import torch
    import worstclass
    from worstclass.data import Augment, Images

    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (60, 1, 8, 8), generator=generator).to(torch.uint8)
    images = Images(x, torch.arange(60) % 3)
    train, valid = images.select(torch.arange(45)), images.select(torch.arange(45, 60))
    objective = worstclass.Trades(beta=6.0, attack=worstclass.PGD(eps=0.1, steps=2, step_size=0.05, loss="kl"))
    plan = worstclass.Plan(
        epochs=2,
        batch_size=15,
        lr=0.05,
        augment=Augment(crop_padding=1, flip=True),
        valid_attack=worstclass.PGD(eps=0.1, steps=2, step_size=0.05),
    )
    model = worstclass.make_model("small-cnn", num_classes=3, in_channels=1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    state = worstclass.new_state(model, worstclass.WAT(train.class_counts(3), eta=0.1), plan)
    records = list(worstclass.fit(state, train, valid, objective, plan))
    assert [record.epoch for record in records] == [1, 2]
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert len(set(records[-1].next_weights.tolist())) == 3
    attack = worstclass.make_attack("pgd-20", eps=0.1)
    assert attack(model.eval(), valid.x.float() / 255, valid.y).shape == valid.x.shape
    hedge = worstclass.ClassHedge(num_classes=3, eta=0.1)
    assert hedge.weigh(torch.ones(4), torch.tensor([0, 1, 2, 0])).shape == (4,)
    guard = worstclass.ClassGuard([2, 1, 1])
    guard.update(torch.tensor([True, False, True]), torch.arange(3))
    assert guard.weights.shape == (3,)
    print("trained")
'''


def test_training_needs_torch_and_numpy_alone(tmp_path: Path) -> None:
    words = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"


def test_the_rest_is_imported_when_it_is_asked_for() -> None:
    """In a process of its own: `import worstclass` is enough to say `worstclass.evaluate`."""
    code = (
        "import sys, worstclass\n"
        "assert 'worstclass.evaluation.evaluate' not in sys.modules and 'scipy' not in sys.modules\n"
        "assert callable(worstclass.evaluate)\n"
        "try: worstclass.nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "module 'worstclass' has no attribute 'nothing'\n"
