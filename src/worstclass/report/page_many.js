"use strict";
// What the page shows in other ways where there are many classes: sorted, the lowest and the highest, and by search.
const ENDS = 10; // classes shown at either end
const CONFUSIONS = 15;
const found = (k) => data.classes[k].toLowerCase().includes(state.find);

function ranks() { // a line a run: its accuracies in order, so that 200 classes are one look
  const runs = shownRuns();
  const rows = runs.flatMap((run) => {
    const classes = run.columns[state.attack].classes.map((c, k) => ({ ...c, class: data.classes[k] })).filter((c) => c.value !== null);
    return d3.sort(classes, (c) => c.value).map((c, i) => ({ ...c, run: run.title, rank: i + 1, label: `${c.class}, ${run.title}, ${i + 1} of ${classes.length}: ${interval(c)}` }));
  });
  const tenth = d3.max(rows, (d) => d.rank) / 10;
  const chart = Plot.plot({
    width: width("ranks"), height: 290, marginBottom: 45, style, ariaLabel: `Classes from worst to best under ${under()}`,
    x: { label: "classes, from worst to best", domain: [1, d3.max(rows, (d) => d.rank)], tickFormat: "d" },
    y: { domain: [0, 100], label: "accuracy (%)", grid: true },
    color: palette(),
    marks: [
      Plot.rectX([tenth], { x1: 1, x2: (d) => Math.max(d, 1.5), fill: "var(--shade)" }),
      Plot.lineY(rows, { x: "rank", y: (d) => 100 * d.value, stroke: "run", strokeWidth: 2, curve: "step" }),
      Plot.ruleY([0]),
      Plot.tip(rows, Plot.pointer({ x: "rank", y: (d) => 100 * d.value, title: "label" })),
    ],
  });
  const worst = runs.map((run) => `${run.title} ${interval(run.columns[state.attack].worst_tenth)}`);
  put("ranks", chart, `Accuracies of the classes under ${under()}, in order, each run in its own. Shaded: the worst tenth, on average ${worst.join("; ")}.`);
}

function classRows() {
  const runs = shownRuns();
  const order = ranking(runs).filter((k) => runs.every((run) => run.columns[state.attack].classes[k].value !== null));
  const between = order.length - 2 * ENDS;
  const folded = !state.all && !state.find && between > 1;
  const chosen = state.find ? order.filter(found) : folded ? [...order.slice(0, ENDS), ...order.slice(-ENDS)] : order;
  const names = chosen.map((k) => data.classes[k]);
  if (folded) names.splice(ENDS, 0, `\u22ef ${between} more \u22ef`);
  const rows = runs.flatMap((run) => chosen.map((k) => {
    const c = run.columns[state.attack].classes[k];
    return { run: run.title, class: data.classes[k], ...c, label: `${data.classes[k]}, ${run.title}: ${interval(c)}` };
  }));
  const full = width("classwise"), left = Math.min(full < 700 ? 120 : 220, 20 + 7 * d3.max([...names, ""], (name) => name.length));
  const chart = Plot.plot({
    width: full, height: 60 + names.length * (8 + 9 * runs.length), marginLeft: left, marginTop: 40, marginBottom: 20,
    style, ariaLabel: `Accuracy of ${state.find ? "classes found" : folded ? "the lowest and the highest classes" : "each class"} under ${under()}`,
    y: { axis: null, domain: runs.map((r) => r.title), padding: 0.08 },
    fy: { domain: names, label: null, axis: null, padding: 0.25 },
    x: { domain: [0, 100], axis: null },
    color: palette(),
    marks: [
      Plot.gridX(),
      Plot.axisX({ anchor: "top", facetAnchor: "top", label: "accuracy (%)", labelOffset: 32 }), // once, and not again below what is left out
      Plot.axisFy({ anchor: "left", tickSize: 0, label: null, tickFormat: (name) => short(name, Math.floor(left / 7)) }),
      Plot.barX(rows, { fy: "class", y: "run", x: (d) => 100 * d.value, fill: "run", ariaLabel: "label" }),
      Plot.ruleY(rows, { fy: "class", y: "run", x1: (d) => 100 * d.low, x2: (d) => 100 * d.high, stroke: "var(--ink)" }),
      Plot.ruleX([0]),
      Plot.tip(rows, Plot.pointerY({ fy: "class", y: "run", x: (d) => 100 * d.value, title: "label" })),
    ],
  });
  const which = state.find ? `${chosen.length} of ${order.length} classes have \u201c${state.find}\u201d in their name` : folded ? `The ${ENDS} lowest and the ${ENDS} highest of ${order.length} classes` : `All ${order.length} classes`;
  put("classwise", names.length ? chart : "", `${which}, by accuracy under ${under()}${runs.length > 1 ? ", averaged over the runs shown" : ""}, with 95% intervals. ${weakest(runs).join(". ")}.`);
}

function confusionList() { // of each class the three that it is most taken for; the largest of all
  const run = data.runs[state.run], column = run.columns[state.attack];
  const pairs = column.confusions.flatMap((thieves, k) => (state.find && !found(k) ? [] : thieves.map(([to, share]) => ({ from: data.classes[k], to: data.classes[to], share }))));
  const rows = d3.sort(pairs.filter((p) => p.share > 0), (p) => -p.share).slice(0, CONFUSIONS)
    .map((p) => ({ ...p, pair: `${p.from} \u2192 ${p.to}`, label: `${p.from} taken for ${p.to}: ${percent(p.share)}%` }));
  const full = width("confusion"), left = Math.min(full < 700 ? 200 : 360, 20 + 7 * d3.max([...rows, { pair: "" }], (d) => d.pair.length));
  const half = Math.floor(left / 14) - 2, shown = new Map(rows.map((d) => [d.pair, `${short(d.from, half)} \u2192 ${short(d.to, half)}`]));
  const chart = Plot.plot({
    width: full, height: 60 + 22 * rows.length, marginLeft: left, marginRight: 50, marginBottom: 45,
    style, ariaLabel: `The largest confusions under ${under()}, ${run.title}`,
    x: { domain: [0, 100], label: "of the class's images (%)", grid: true },
    y: { domain: rows.map((d) => d.pair), label: null, axis: null },
    marks: [
      Plot.axisY({ tickSize: 0, label: null, tickFormat: (pair) => shown.get(pair) }),
      Plot.barX(rows, { y: "pair", x: (d) => 100 * d.share, fill: tone(run.color), ariaLabel: "label", insetTop: 2, insetBottom: 2 }),
      Plot.text(rows, { y: "pair", x: (d) => 100 * d.share, text: (d) => percent(d.share), dx: 4, textAnchor: "start" }),
      Plot.ruleX([0]),
    ],
  });
  const of = state.find ? ` of classes with \u201c${state.find}\u201d in their name` : "";
  put("confusion", rows.length ? chart : "", `${run.title} under ${under()}: the ${rows.length} largest confusions${of}, class \u2192 what it is taken for.`);
}
