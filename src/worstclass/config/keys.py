"""One validated, frozen configuration: every key of a recipe, its default and what is allowed."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from worstclass.config.fields import (
    Fraction,
    NotNegative,
    Number,
    Pair,
    Positive,
    Share,
    Whole,
    refuse_single,
)
from worstclass.config.methods import METHODS, ObjectiveName, check_method
from worstclass.config.owners import check_owners, is_used
from worstclass.errors import unknown
from worstclass.inputs.names import MAX_SIZE, Norm, check_data_name, check_model_name
from worstclass.inputs.radius import check_radius, trades_step
from worstclass.metrics.tail import has_many

if TYPE_CHECKING:  # what needs torch is imported where it is made: a recipe is checked without
    import torch

    from worstclass.training import Plan
    from worstclass.types import ClassStrategy, Objective

MethodName = Annotated[str, AfterValidator(check_method)]
Select = Literal["worst", "worst-accuracy", "worst-tenth", "worst-loss", "average", "average-and-worst", "last"]
WORST = ("worst-accuracy", "worst-tenth")  # what `worst` can mean
STARTS = {"dafa_warmup": 0.7, "cfa_start": 0.1}  # epochs until a method begins, and which share of all is the default
AIMED = ("trades", "pgd-at")  # objectives whose attack can aim at a class
WARMUPS = ("lr_warmup", "awp_warmup")  # epochs that must leave some of the training


class Config(BaseModel):
    """Everything that decides the outcome of a run. Defaults are the paper's for CIFAR-10 and ResNet-18."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: MethodName = Field("wat", description=f"how to train ({', '.join(METHODS)})")
    objective: ObjectiveName | None = Field(
        None,
        description="loss under the class weights; default: the method's own (trades for all of the paper's)",
    )
    data: Annotated[str, AfterValidator(check_data_name)] = Field("cifar10", description="data set")
    image_size: Annotated[Whole, Field(ge=1, le=MAX_SIZE)] | None = Field(
        None, description="crop images at the centre and resize them to so many pixels a side; left out, they are as is"
    )
    test_fraction: Share | None = Field(
        None, description="fraction of each class that is for testing, of a folder without train/ and test/"
    )
    model: Annotated[str, AfterValidator(check_model_name)] = Field("resnet18", description="network f")
    normalize: bool = Field(False, description="standardise channels inside the model, by training-set statistics")
    epochs: Whole = Field(100, ge=1, description="epochs T")
    batch_size: Whole = Field(128, ge=1, description="images a step")
    lr: Positive = Field(0.1, description="learning rate lambda")
    schedule: Literal["piecewise", "cosine", "one-cycle"] = Field("piecewise", description="learning-rate schedule")
    lr_milestones: Annotated[tuple[Positive, ...], BeforeValidator(refuse_single)] = Field(
        (0.75, 0.9, 1.0), description="fractions of the epochs, in (0, 1], at which the learning rate decays"
    )
    lr_decay: Positive = Field(0.1, description="factor on the learning rate at each milestone")
    lr_peak: Share = Field(0.25, description="fraction of the epochs at which the learning rate peaks")
    lr_warmup: NotNegative = Field(0.0, description="epochs of linear learning-rate warm-up")
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="optimizer")
    momentum: Annotated[Number, Field(ge=0, lt=1)] = Field(0.9, description="momentum of SGD")
    nesterov: bool = Field(False, description="Nesterov momentum")
    weight_decay: NotNegative = Field(2e-4, description="weight decay")
    clip_grad_norm: Positive | None = Field(None, description="clip the gradient to this norm; default: no clipping")
    label_smoothing: Annotated[Number, Field(ge=0, lt=1)] = Field(0.0, description="label smoothing of cross-entropy")
    average: Literal["none", "ema", "fawa"] = Field(
        "none", description="average of the weights, which is validated and selected instead of them"
    )
    ema_decay: Share = Field(0.999, description="decay of the moving average per step")
    fawa_decay: Share = Field(0.85, description="decay of the moving average per epoch")
    fawa_threshold: Fraction = Field(
        0.2, description="an epoch counts if its worst class has at least this validation accuracy under attack"
    )
    recalibrate: bool = Field(
        True, description="measure BatchNorm statistics of averaged weights on training images; false: average them too"
    )
    awp_gamma: NotNegative = Field(
        0.0, description="adversarial weight perturbation, relative to the norm of the weights"
    )
    awp_warmup: Whole = Field(0, ge=0, description="epochs without weight perturbation")
    awp_every: Whole = Field(1, ge=1, description="perturb weights every n steps")
    adr_share: Pair[Fraction] | None = Field(
        None, description="self-distillation: first and last share of the average's predictions in the labels"
    )
    adr_temperature: Pair[Positive] = Field((2.5, 2.0), description="first and last temperature of those predictions")
    init: str | None = Field(None, description="run whose selected weights training starts from")
    crop: Literal["pad", "shift"] = Field(
        "pad", description="random crop: of the padded image, or cut and moved to a random place (Cropshift)"
    )
    crop_padding: Whole = Field(
        4, ge=0, le=1024, description="zero padding before the random crop, in pixels; 0: no crop"
    )
    crop_shift: Whole = Field(10, ge=1, le=1024, description="most rows and columns that are cut away, in all")
    flip: bool = Field(True, description="random horizontal flips")
    color_shape: bool = Field(
        False, description="one random change of each image: colour, brightness, contrast, sharpness, shear, rotation"
    )
    erase: Fraction = Field(0.0, description="share of the images in which a random rectangle is black")
    validation: Literal["own", "held-out"] = Field(
        "own", description="validation images: those that the data bring, if any, or held out of the training images"
    )
    valid_fraction: Share = Field(0.06, description="fraction of each class for validation, its last images")
    valid_min: Whole = Field(
        20,
        ge=0,
        description="least number of validation images of a class, up to a fifth; 0: exactly valid_fraction",
    )
    valid_every: Whole = Field(
        1, ge=1, description="validate every n epochs, and after the first and the last; only those can be kept"
    )
    valid_attack: Literal["pgd", "cw"] = Field(
        "pgd", description="attack on validation images, on cross-entropy or on the margin: 20 steps of eps/4"
    )
    imbalance: Annotated[Number, Field(ge=1)] | None = Field(
        None, description="largest over smallest class: training images are thinned to a long tail; left out, all stay"
    )
    norm: Norm = Field("linf", description="norm of the ball of attack and evaluation")
    eps: Positive = Field(8 / 255, description="radius epsilon of attack and evaluation, images in [0, 1]")
    radius_warmup: NotNegative = Field(0.0, description="epochs over which the training radius grows from zero")
    attack_steps: Whole = Field(10, ge=1, description="steps of the training attack")
    early_attack_steps: tuple[Annotated[Whole, Field(ge=1)], ...] = Field(
        (), description="numbers of steps before that, each until the next of attack_milestones"
    )
    attack_milestones: Annotated[tuple[Share, ...], BeforeValidator(refuse_single)] = Field(
        (), description="fractions of the epochs at which the next number of steps begins"
    )
    attack_step_size: Positive | None = Field(
        None,
        description="step size of the training attack; left out, 0.007 at eps 8/255 and in proportion, "
        "and eps/4 for frl-rwrm",
    )
    beta: NotNegative = Field(6.0, description="weight beta of the KL term of TRADES")
    eta: Positive = Field(0.1, description="learning rate eta of Hedge")
    variant: Literal["paper", "reference"] = Field("paper", description="wat as in the paper, or as in its public code")
    class_weights: tuple[NotNegative, ...] | Literal["balanced"] | None = Field(
        None, description="w_1..w_K, summing to 1, or 'balanced': all classes alike, however many images each has"
    )
    fixed_mode: Literal["weight", "sample"] = Field(
        "weight", description="weight the losses of classes, or sample classes by the weights"
    )
    focus_class: Whole | None = Field(None, ge=0, description="index of the class that gets focus_weight")
    focus_weight: Share | None = Field(None, description="w_c of focus_class; the others share the rest")
    frl_tau: NotNegative = Field(0.05, description="allowed gap to the mean, tau_1 = tau_2")
    frl_rate: Positive = Field(0.05, description="step size of the multipliers, alpha_1 = alpha_2")
    frl_margin_rate: Positive = Field(0.2, description="step size of the radius multipliers")
    csl_rate: Positive = Field(0.05, description="step size alpha of the class costs")
    guarded_radius: Positive = Field(0.15, description="radius of the KL ball around the base distribution of classes")
    guarded_tilt: Positive = Field(5.0, description="upper bound of the exponent s in p_k ~ b_k exp(s cost_k)")
    guarded_prior: NotNegative = Field(15.0, description="validation images that the estimate from training counts as")
    guarded_slack: NotNegative = Field(0.15, description="how far validation can raise the cost above that estimate")
    guarded_memory: Annotated[Number, Field(ge=0, lt=1)] = Field(
        0.8, description="decay of the average of costs per epoch"
    )
    guarded_base: Literal["balanced", "data"] = Field(
        "balanced", description="base distribution: uniform over classes, or class frequencies of the data"
    )
    guarded_mode: Literal["sample", "weight"] = Field(
        "sample", description="sample classes by the distribution, or weight their losses"
    )
    dafa_strength: NotNegative = Field(1.0, description="how much weight moves between confused classes, lambda")
    dafa_warmup: Whole | None = Field(
        None, ge=1, description="epoch whose confusion table sets the weights, from then on; left out, 0.7 of them"
    )
    dafa_refresh: Annotated[Number, Field(ge=0, lt=1)] = Field(
        0.0, description="decay of a moving average of the confusion table, used each epoch; 0: only once"
    )
    dafa_part: Literal["train", "valid"] = Field("train", description="images of the confusion table")
    dafa_level: NotNegative = Field(
        0.0, description="step of the multipliers that level the worst third of the classes, each epoch; 0: none"
    )
    dafa_weights: tuple[Positive, ...] | None = Field(
        None, description="weights W_1..W_K of mean 1, in place of those of a confusion table"
    )
    cfa_radius: NotNegative = Field(0.3, description="smallest factor on a class's radius, lambda_1")
    cfa_beta: NotNegative = Field(0.5, description="smallest factor on a class's beta, lambda_2")
    cfa_start: Whole | None = Field(
        None, ge=1, description="epoch after which radii and betas change; left out, 0.1 of them"
    )
    faal_tau: Positive = Field(0.5, description="radius of the KL ball around uniform weights")
    cfol_eta: Positive = Field(5e-6, description="step size of the log-weights of the classes")
    cfol_gamma: Annotated[Number, Field(ge=0, le=1)] = Field(0.5, description="share of uniform sampling")
    cfol_mode: Literal["sample", "weight"] = Field(
        "sample", description="sample classes by their weights, or weight their losses"
    )
    csr_alpha: Annotated[Number, Field(ge=0, le=1)] = Field(
        0.3, description="fraction of the weighted adversarial loss"
    )
    csr_part: Literal["train", "valid"] = Field("train", description="images of the confusion table")
    csr_diagonal: bool = Field(True, description="whether correctly classified samples get weight, as published")
    fair_tat_sharpness: NotNegative = Field(2.0, description="factor in the softmax over target classes")
    fair_tat_radius: NotNegative = Field(0.5, description="smallest factor on a class's radius, lambda_r")
    trix_strength: NotNegative = Field(1.0, description="how much weight and radius follow the gap to the mean")
    base_start: Share | None = Field(
        None,
        description="fraction of the epochs after which a baseline without learned class weights is trained too",
    )
    budget: NotNegative = Field(
        0.05, description="how much of the baseline's average robust accuracy over classes may be lost"
    )
    ship: Literal["better", "method"] = Field(
        "better", description="model to keep: the better of method, baseline and interpolations, or the method's"
    )
    adjust_budget: NotNegative | None = Field(
        None,
        description="logit adjustment after training, for the weakest classes on validation: "
        "how much of the average robust accuracy it may cost; left out, none is done",
    )
    select: Select = Field(
        "worst",
        description="which epoch to keep, by validation; worst: worst-accuracy, from 20 classes on worst-tenth; "
        "worst-loss is the paper's rule",
    )
    select_smoothing: Whole = Field(
        1, ge=1, le=2**16, description="select by the mean over the last n epochs; 1: no smoothing"
    )
    seed: Whole = Field(1, ge=0, description="seed of weights, order, augmentation and attack starts")

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        method = METHODS[self.method]
        for key in method.keys:
            if key not in Config.model_fields:
                raise unknown(f"key of method '{self.method}'", key, Config.model_fields)
        check_owners([key for key in DEFAULTS if key in self.model_fields_set], self.__dict__, DEFAULTS)
        if method.aims and self.base_objective not in AIMED:
            raise ValueError(
                f"method '{self.method}' aims attacks at a class, and objective '{self.base_objective}' cannot: "
                f"take {' or '.join(AIMED)}"
            )
        for key in ("label_smoothing", "adr_share"):
            if method.hard_labels and getattr(self, key):
                raise ValueError(f"{key} is not for method '{self.method}', whose loss takes hard labels: leave it out")
        if self.base_start is not None and not can_have_base(self.__dict__):
            least = "two epochs or more" if self.epochs < 2 else f"class weights, and method '{self.method}' has none"
            raise ValueError(f"base_start is for a run with {least}: leave it out, or set base_start=none")
        if self.method == "fixed":
            focused = self.focus_class is not None and self.focus_weight is not None
            if focused == (self.class_weights is not None):
                raise ValueError("method 'fixed' needs either class_weights, or focus_class and focus_weight")
            if isinstance(self.class_weights, tuple) and abs(sum(self.class_weights) - 1) > 1e-6:
                raise ValueError(f"class_weights must sum to 1, not {sum(self.class_weights):g}")
        if self.dafa_weights is not None:
            if self.dafa_refresh:
                raise ValueError("dafa_weights stand in place of a confusion table: leave out dafa_refresh")
            mean = sum(self.dafa_weights) / len(self.dafa_weights)
            if abs(mean - 1) > 0.01:
                raise ValueError(f"dafa_weights must have the mean 1, not {mean:.3g}")
        check_radius(self.eps, self.norm)
        if len(self.early_attack_steps) != len(self.attack_milestones):
            raise ValueError("early_attack_steps and attack_milestones go together, one milestone for each number")
        if list(self.attack_milestones) != sorted(self.attack_milestones):
            raise ValueError("attack_milestones must not fall")
        late = next((share for share in self.lr_milestones if share > 1), None)
        if late is not None:
            epoch, of = (late, self.epochs) if late <= self.epochs else (75, 100)
            raise ValueError(
                f"lr_milestones are shares of the epochs, in (0, 1], not {late:g}: "
                f'epoch {epoch:g} of {of} is "{epoch:g}/{of}"'
            )
        for key in (*STARTS, *WARMUPS):
            first = getattr(self, key)
            epochs = max(self.epochs, 2) if key in STARTS else self.epochs  # 1 of 1 is what a recipe may leave open
            if key in self.used_keys and first is not None and first >= epochs:
                raise ValueError(f"{key} = {first:.12g} of {self.epochs} epochs: what begins after it never would")
        if "radius_warmup" in self.used_keys and self.radius_warmup > self.epochs:
            raise ValueError(f"radius_warmup = {self.radius_warmup:.12g} of {self.epochs} epochs: eps is never reached")
        if self.early_attack_steps and self.epochs < 2:
            raise ValueError("early_attack_steps in 1 epoch: what begins after them never would")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov = true needs a momentum above 0: set one, or leave out nesterov")
        reach = self.attack_steps * self.step_size
        if self.base_objective != "natural" and reach < self.eps * (1 - 1e-9):  # 7 * 0.1 is not quite 0.7
            needed = self.eps / self.attack_steps
            digit = 10.0 ** (math.floor(math.log10(needed)) - 2)  # the third, rounded up: it can be taken as it is
            raise ValueError(
                f"attack_steps = {self.attack_steps} of attack_step_size = {self.step_size:.3g} reach {reach:.3g}, "
                f"less than eps = {self.eps:.3g}: take more steps, or an attack_step_size "
                f"of at least {math.ceil(needed / digit - 1e-6) * digit:.3g}"
            )
        return self

    @property
    def base_objective(self) -> ObjectiveName:
        """The base loss: the one given, or the method's own."""
        return self.objective or METHODS[self.method].objective

    @property
    def used_keys(self) -> tuple[str, ...]:
        """The keys that it uses; the others, of another method say, have their defaults."""
        return tuple(key for key in Config.model_fields if is_used(key, self.__dict__, DEFAULTS))

    def for_classes(self, num_classes: int) -> "Config":
        """The same, with what was left open until the number of classes is known."""
        if self.select != "worst":
            return self
        return self.model_copy(update={"select": "worst-tenth" if has_many(num_classes) else "worst-accuracy"})

    def from_epoch(self, before: int) -> "Config":
        """The same, with what was left open until it is known how many epochs another method has trained before."""
        shares = {key: share for key, share in STARTS.items() if key in self.used_keys and getattr(self, key) is None}
        starts = {key: max(1, round(share * self.epochs) - before) for key, share in shares.items()}
        return self.model_copy(update=starts) if starts else self

    def recipe(self) -> dict[str, Any]:
        """The keys that it uses, as plain JSON that `make_config` reads back to an equal configuration."""
        return self.model_dump(mode="json", include=set(self.used_keys), exclude_none=True)

    @property
    def step_size(self) -> float:
        """The step of the training attack; a radius that a strategy multiplies has its step multiplied too."""
        if self.attack_step_size is not None:
            return self.attack_step_size
        return self.eps / 4 if self.method == "frl-rwrm" else trades_step(self.eps)

    def make_objective(self) -> "Objective":
        """The base objective of the method."""
        from worstclass.attacks import PGD, trades_attack
        from worstclass.objectives import BAT, Madry, Natural, Trades

        name, step = self.base_objective, self.step_size
        if name == "natural":
            return Natural(label_smoothing=self.label_smoothing)
        if name == "pgd-at":
            attack = PGD(eps=self.eps, steps=self.attack_steps, step_size=step, norm=self.norm)
            return Madry(attack=attack, label_smoothing=self.label_smoothing)
        attack = trades_attack(eps=self.eps, steps=self.attack_steps, step_size=step, norm=self.norm)
        if name == "bat":
            return BAT(beta=self.beta, attack=attack, label_smoothing=self.label_smoothing)
        return Trades(beta=self.beta, attack=attack, label_smoothing=self.label_smoothing)

    def make_strategy(self, class_counts: "torch.Tensor") -> "ClassStrategy":
        """The class strategy of the method, for training images of these counts (K,)."""
        return METHODS[self.method].make(self.from_epoch(0), class_counts)

    @property
    def title(self) -> str:
        """How the method is called in tables."""
        method = METHODS[self.method]
        called = METHODS[self.base_objective].title if self.class_weights == "balanced" else method.title
        better = self.base_start is not None and self.ship == "better"  # than its base, or else that one
        parts = [called + method.detail(self) + (", with base" if better else "")]
        parts += [self.average.upper()] if self.average != "none" else []
        parts += ["AWP"] if self.awp_gamma else []
        parts += ["ADR"] if self.adr_share else []
        return " + ".join(parts + ([] if self.adjust_budget is None else ["adjusted"]))

    def make_plan(self) -> "Plan":
        """The schedule, the parts of a step, and the attack that validates."""
        from worstclass.attacks import validation_cw, validation_pgd
        from worstclass.data import Augment
        from worstclass.training import (
            ADR,
            EMA,
            FAWA,
            SGD,
            AdamW,
            AttackSteps,
            AWPRule,
            Cosine,
            OneCycle,
            Piecewise,
            Plan,
            Schedule,
            WarmUp,
        )

        schedule: Schedule = Piecewise(self.lr_milestones, self.lr_decay)
        if self.schedule != "piecewise":
            schedule = Cosine() if self.schedule == "cosine" else OneCycle(self.lr_peak)
        validate_with = validation_cw if self.valid_attack == "cw" else validation_pgd
        sgd = SGD(momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay)
        averages = {"none": None, "ema": EMA(self.ema_decay), "fawa": FAWA(self.fawa_decay, self.fawa_threshold)}
        steps = (*self.early_attack_steps, self.attack_steps)
        sizes = (*(max(self.step_size, 1.25 * self.eps / early) for early in steps[:-1]), self.step_size)
        return Plan(
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            schedule=WarmUp(schedule, self.lr_warmup) if self.lr_warmup else schedule,
            optimizer=sgd if self.optimizer == "sgd" else AdamW(weight_decay=self.weight_decay),
            clip_grad_norm=self.clip_grad_norm,
            average=averages[self.average],
            recalibrate=self.recalibrate,
            awp=AWPRule(self.awp_gamma, self.awp_warmup, self.awp_every) if self.awp_gamma else None,
            adr=ADR(self.adr_share, self.adr_temperature) if self.adr_share else None,
            radius_warmup=self.radius_warmup,
            attack_steps=AttackSteps(steps, sizes, self.attack_milestones) if self.early_attack_steps else None,
            valid_every=self.valid_every,
            augment=Augment(
                crop_padding=self.crop_padding if self.crop == "pad" else 0,
                flip=self.flip,
                crop_shift=self.crop_shift if self.crop == "shift" else 0,
                color_shape=self.color_shape,
                erase=self.erase,
            ),
            valid_attack=validate_with(eps=self.eps, norm=self.norm),
            seed=self.seed,
        )


DEFAULTS: dict[str, Any] = {key: field.default for key, field in Config.model_fields.items()}


def can_have_base(values: Mapping[str, Any]) -> bool:
    """Whether there are class weights to do without, and epochs to do it in; values may not be validated yet."""
    method, epochs = (values.get(key, DEFAULTS[key]) for key in ("method", "epochs"))
    return method not in get_args(ObjectiveName) and not (isinstance(epochs, int) and epochs < 2)
