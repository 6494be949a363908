"use strict";
// Draws the page's charts with Observable Plot from the data embedded in it; the controls choose attack and runs.
const data = JSON.parse(document.getElementById("data").textContent);
const state = { attack: data.attack, shown: new Set(data.runs.map((_, i) => i)), run: 0, find: "", all: false };
const interval = (m) => (m.value === null ? "no images" : `${percent(m.value)}% [${percent(m.low)}, ${percent(m.high)}]`);
const shownRuns = () => data.runs.filter((_, i) => state.shown.has(i));
const under = () => data.attacks.find((a) => a.name === state.attack).title;
const palette = () => ({ domain: data.runs.map((r) => r.title), range: data.runs.map((r) => tone(r.color)) });
const named = (name) => short(name, 24);
const margin = (names) => 25 + 6.5 * d3.max(names, (name) => named(name).length); // room for names beside a chart

function ranking(runs) { // classes from the lowest to the highest mean accuracy of the runs; those without images last
  const values = runs.map((run) => run.columns[state.attack].classes.map((c) => c.value));
  return d3.sort(d3.range(data.classes.length), (k) => (values.every((v) => v[k] !== null) ? d3.mean(values, (v) => v[k]) : 2));
}

function weakest(runs) { // of each run, in words
  return runs.map((run) => {
    const worst = run.columns[state.attack].worst;
    return worst.ties > 1 ? `${run.title}: ${worst.ties} classes at ${interval(worst)}` : `${run.title}: weakest ${worst.class}, ${interval(worst)}`;
  });
}

function classwise() {
  const runs = shownRuns(), order = ranking(runs).map((k) => data.classes[k]);
  const rows = runs.flatMap((run) =>
    run.columns[state.attack].classes.map((c, k) => ({
      run: run.title, class: data.classes[k], ...c,
      label: `${data.classes[k]}, ${run.title}: ${interval(c)}`,
    }))).filter((d) => d.value !== null);
  const averages = runs.map((run) => ({ run: run.title, value: run.columns[state.attack].average.value }));
  const needed = data.classes.length * (runs.length * 9 + 12);
  const chart = Plot.plot({
    width: Math.max(width("classwise"), needed), height: 270 + 0.6 * margin(order), marginBottom: 15 + 0.6 * margin(order),
    style, ariaLabel: `Accuracy of each class under ${under()}`,
    x: { axis: null, domain: runs.map((r) => r.title), padding: 0.08 },
    fx: { domain: order, label: null, tickRotate: data.classes.length > 6 ? -35 : 0, tickFormat: named },
    y: { domain: [0, 100], label: "accuracy (%)", grid: true },
    color: palette(),
    marks: [
      Plot.barY(rows, { fx: "class", x: "run", y: (d) => 100 * d.value, fill: "run", ariaLabel: "label" }),
      Plot.ruleX(rows, { fx: "class", x: "run", y1: (d) => 100 * d.low, y2: (d) => 100 * d.high, stroke: "var(--ink)" }),
      Plot.ruleY(averages, { y: (d) => 100 * d.value, stroke: "run", strokeDasharray: "5 4" }),
      Plot.ruleY([0]),
      Plot.tip(rows, Plot.pointerX({ fx: "class", x: "run", y: (d) => 100 * d.value, title: "label" })),
    ],
  });
  put("classwise", chart, `Accuracy of each class under ${under()} with its 95% interval, the weakest first; dashed: the average. ${weakest(runs).join(". ")}.`);
}

function forest() { // a row a method: seeds as dots below the bar of their mean, the paper's number as a cross above it
  const methods = d3.sort(data.methods, (m) => -m.columns[state.attack].worst.value);
  const names = methods.map((m) => m.title);
  const full = width("forest"), narrow = full < 700;
  const left = Math.min(narrow ? 150 : 260, 20 + 7 * d3.max(names, (name) => name.length));
  const measures = [["average", "average"], ["worst", "worst class"], ...(data.many ? [["worst_tenth", "worst tenth"]] : [])];
  const panels = measures.map(([key, title], panel) => {
    const named = narrow || panel === 0; // side by side, all panels have the names of the first
    const rows = methods.map((m) => {
      const d = m.columns[state.attack][key];
      const deviation = d.std === null ? "" : ` ± ${percent(d.std)} over ${d.seeds.length} seeds`;
      const paper = d.paper === null ? "" : `, the paper ${percent(d.paper)}%`;
      return { method: m.title, ...d, label: `${m.title}, ${title}: ${percent(d.value)}%${deviation} [${percent(d.low)}, ${percent(d.high)}]${paper}` };
    });
    const seeds = rows.flatMap((d) => d.seeds.map((value) => ({ method: d.method, value })));
    return Plot.plot({
      width: narrow ? full : (full - left) / measures.length - 10 + (named ? left : 0), height: 65 + 38 * rows.length,
      marginLeft: named ? left : 15, marginRight: 15, marginTop: 20, marginBottom: 40,
      style, ariaLabel: `Methods under ${under()}: ${title}`,
      x: { label: `${title}, accuracy (%)`, grid: true, nice: true, ticks: data.many ? 4 : 6 },
      y: { domain: names, label: null, axis: null, padding: 0.2 },
      marks: [
        named ? Plot.axisY({ tickSize: 0, label: null, lineWidth: left / 13, textOverflow: "ellipsis" }) : null,
        Plot.ruleY(rows, { y: "method", x1: (d) => 100 * d.low, x2: (d) => 100 * d.high, stroke: tone("#0072B2"), strokeWidth: 1.5 }),
        Plot.tickX(rows, { y: "method", x: (d) => 100 * d.value, stroke: tone("#0072B2"), strokeWidth: 3, inset: 8, ariaLabel: "label" }),
        Plot.dot(seeds, { y: "method", x: (d) => 100 * d.value, fill: tone("#D55E00"), r: 3.5, dy: 9 }),
        Plot.dot(rows.filter((d) => d.paper !== null), { y: "method", x: (d) => 100 * d.paper, symbol: "times", stroke: "var(--ink)", r: 4, dy: -9 }),
        Plot.tip(rows, Plot.pointerY({ y: "method", x: (d) => 100 * d.value, title: "label" })),
      ],
    });
  });
  const box = document.createElement("div");
  box.className = "panels";
  box.append(...panels);
  const known = data.methods.some((m) => m.columns[state.attack].average.paper !== null);
  put("forest", box, `Each method under ${under()}. Dot: a seed; bar: the mean with its 95% interval${known ? "; cross: the paper" : ""}.`);
}

function plane() {
  const runs = shownRuns();
  const points = runs.map((run) => {
    const { average, worst, worst_tenth, rho } = run.columns[state.attack];
    const gain = rho && rho.value !== null ? `, rho ${rho.value.toFixed(3)}` : "";
    const tenth = data.many ? `, worst tenth ${interval(worst_tenth)}` : "";
    return { run: run.title, color: run.color, average, worst: data.many ? worst_tenth : worst, label: `${run.title}: average ${interval(average)}, worst ${interval(worst)}${tenth}${gain}` };
  });
  const base = data.base, what = data.many ? "worst-tenth" : "worst-class";
  const x = d3.extent(points.flatMap((p) => [100 * p.average.low, 100 * p.average.high]));
  const y = d3.extent(points.flatMap((p) => [100 * p.worst.low, 100 * p.worst.high]));
  const pad = (e) => [Math.max(0, e[0] - 2), Math.min(100, e[1] + 2)];
  const [x0, x1] = pad(x), [y0, y1] = pad(y);
  const above = (y1 - y0) / 22; // so that names do not cover each other
  d3.sort(points, (p) => p.worst.value).forEach((p, i, all) => {
    p.name_at = i ? Math.max(100 * p.worst.value, all[i - 1].name_at + above) : 100 * p.worst.value;
  });
  const lines = [];
  const [a0, w0] = base && !data.many && state.attack in base.columns ? base.columns[state.attack].map((v) => 100 * v) : [0, 0];
  if (w0 > 0) {
    const worstAt = (rho, average) => w0 * (2 + rho - average / a0);
    const rhoAt = (average, worst) => worst / w0 + average / a0 - 2;
    const averageAt = (rho, worst) => a0 * (2 + rho - worst / w0);
    for (const rho of d3.ticks(rhoAt(x0, y0), rhoAt(x1, y1), 7)) { // from the left or top edge to the right or bottom one
      const start = worstAt(rho, x0) <= y1 ? [x0, worstAt(rho, x0)] : [averageAt(rho, y1), y1];
      const end = worstAt(rho, x1) >= y0 ? [x1, worstAt(rho, x1)] : [averageAt(rho, y0), y0];
      lines.push({ x1: start[0], y1: start[1], x2: end[0], y2: end[1], rho });
    }
  }
  const chart = Plot.plot({
    width: Math.min(860, width("plane")), height: 420, marginRight: 60,
    style, ariaLabel: `Average against ${what} accuracy under ${under()}`,
    x: { domain: [x0, x1], label: "average accuracy (%)", grid: true },
    y: { domain: [y0, y1], label: `${what} accuracy (%)`, grid: true },
    color: palette(),
    marks: [
      Plot.link(lines, { x1: "x1", y1: "y1", x2: "x2", y2: "y2", stroke: "var(--soft)", strokeDasharray: "2 3" }),
      Plot.text(lines, { x: "x2", y: "y2", text: (l) => `rho ${l.rho.toFixed(2)}`, dx: 4, dy: -5, textAnchor: "start", fill: "var(--soft)" }),
      Plot.ruleX(points, { x: (d) => 100 * d.average.value, y1: (d) => 100 * d.worst.low, y2: (d) => 100 * d.worst.high, stroke: "run" }),
      Plot.ruleY(points, { y: (d) => 100 * d.worst.value, x1: (d) => 100 * d.average.low, x2: (d) => 100 * d.average.high, stroke: "run" }),
      Plot.text(points, { x: (d) => 100 * d.average.value, y: "name_at", text: "run", dx: 9, dy: -9, textAnchor: "start", fontWeight: 600, stroke: "var(--paper)", strokeWidth: 4, fill: { value: (d) => legible(d.color), scale: null } }),
      Plot.dot(points, { x: (d) => 100 * d.average.value, y: (d) => 100 * d.worst.value, fill: "run", r: 6, ariaLabel: "label" }),
      Plot.tip(points, Plot.pointer({ x: (d) => 100 * d.average.value, y: (d) => 100 * d.worst.value, title: "label" })),
    ],
  });
  const against = lines.length ? `Dashed lines are of equal rho against ${base.title}. ` : base && !data.many ? `rho is against ${base.title}. ` : "";
  put("plane", chart, `Right is better on average, up is better for the ${data.many ? "worst tenth of the classes" : "weakest class"}. ${against}Bars are 95% intervals.${base || data.many ? "" : " There is no vanilla run, and so no rho."}`);
}

function training() {
  const run = data.runs[state.run];
  if (run.log) epochs(run, data.classes, data.many);
  else for (const id of ["weights", "accuracies"]) put(id, "", `${run.title} was trained elsewhere: there is no log of its epochs.`);
}

function confusion() {
  const run = data.runs[state.run], column = run.columns[state.attack];
  const weakest = data.classes.indexOf(column.worst.class);
  const cells = column.confusion.flatMap((row, i) => row.map((share, j) => ({ share, from: data.classes[i], to: data.classes[j], own: i === j })))
    .map((c) => ({ ...c, label: `${c.from} taken for ${c.to}: ${percent(c.share)}%` }));
  const order = ranking([run]).map((k) => data.classes[k]);
  const shade = dark() ? d3.interpolateRgb("#1d2127", "#86c5ff") : d3.interpolateBlues;
  const left = margin(order), size = Math.min(width("confusion"), left + 35 + 46 * order.length);
  const chart = Plot.plot({
    width: size, height: 55 + 34 * order.length + left * 0.65, marginLeft: left, marginBottom: 35 + left * 0.65, padding: 0.04,
    style, ariaLabel: `What each class is taken for under ${under()}, ${run.title}`,
    x: { domain: order, label: "predicted", labelAnchor: "right", labelOffset: 30 + left * 0.65, tickRotate: -40, tickFormat: named }, y: { domain: order, label: null, tickFormat: named },
    color: { type: "sqrt", domain: [0, 1], interpolate: shade },
    marks: [
      Plot.cell(cells, { x: "to", y: "from", fill: "share", ariaLabel: "label" }),
      Plot.cell(cells.filter((c) => c.own), { x: "to", y: "from", stroke: "var(--ink)", fill: "none" }),
      Plot.text(cells.filter((c) => c.share >= 0.005), { x: "to", y: "from", text: (d) => (100 * d.share).toFixed(0), fill: (d) => (d3.lab(shade(Math.sqrt(d.share))).l > 50 ? "black" : "white"), fontSize: 10 }),
      Plot.tip(cells, Plot.pointer({ x: "to", y: "from", title: "label" })),
    ],
  });
  const thieves = column.confusion[weakest].map((share, j) => ({ share, name: data.classes[j] })).filter((_, j) => j !== weakest).sort((a, b) => b.share - a.share).slice(0, 3);
  put("confusion", chart, `${run.title} under ${under()}, percent of each row, the weakest class first. ${column.worst.class}, ${column.worst.ties > 1 ? `one of ${column.worst.ties} classes at ${percent(column.worst.value)}%` : "the weakest"}, is taken for ${thieves.map((t) => `${t.name} (${percent(t.share)}%)`).join(", ")}.`);
}

function classes() {
  if (data.many) { ranks(); classRows(); confusionList(); } else { classwise(); confusion(); }
}

function compare() { forest(); classes(); plane(); }

function redraw() {
  document.querySelectorAll(".controls .swatch").forEach((swatch, i) => { swatch.style.background = tone(data.runs[i].color); });
  compare();
  training();
}

document.querySelectorAll("[name=attack]").forEach((input) => input.addEventListener("change", () => { state.attack = input.value; compare(); }));
document.querySelectorAll("[name=shown]").forEach((input) => input.addEventListener("change", () => {
  const index = Number(input.value);
  if (input.checked) state.shown.add(index);
  else if (state.shown.size > 1) state.shown.delete(index);
  else input.checked = true; // one run at least
  compare();
}));
document.querySelectorAll("[name=run]").forEach((input) => input.addEventListener("change", () => { state.run = Number(input.value); training(); classes(); }));
document.querySelectorAll("[name=find]").forEach((input) => input.addEventListener("input", () => { state.find = input.value.trim().toLowerCase(); classes(); }));
document.querySelectorAll("[name=all]").forEach((input) => input.addEventListener("change", () => { state.all = input.checked; classes(); }));
document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", async () => {
  await copy(data.copies[button.dataset.copy][button.dataset.kind]);
  button.parentElement.querySelector("[role=status]").textContent = `Copied as ${button.textContent}.`;
}));

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // not allowed, or not there: as before there was one
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

let pending;
addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(redraw, 150); });
followTheme(redraw);
redraw();
document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView(); // charts have moved what is below them
document.body.dataset.ready = "yes";
