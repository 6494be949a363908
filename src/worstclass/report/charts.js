"use strict";
// What the report and `worstclass watch` share: colours in light, dark and print, and the charts of a run's epochs.
const style = { fontSize: "12px" };
const system = matchMedia("(prefers-color-scheme: dark)");
let printing = false;
const dark = () => !printing && (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
// As `percentages.percent` does: rounded once, and ties, which toFixed takes up, to the even digit: 6.25 is 6.2.
const percent = (x) => (Math.abs(4 * (100 * x)) % 4 === 1 ? Math.trunc(1000 * x) / 10 : 100 * x).toFixed(1);
const lightness = (color, bound) => { const c = d3.lab(color); c.l = bound(c.l); return c.formatHex(); };
const tone = (color) => (dark() ? lightness(color, (l) => Math.max(l, 55)) : color); // as a bar, line or dot
const legible = (color) => lightness(color, (l) => (dark() ? Math.max(l, 72) : Math.min(l, 45))); // as text
const width = (id) => Math.max(300, Math.min(1020, document.getElementById(id).clientWidth || 1020));
const short = (name, longest) => { // of a long name both ends, since names of many classes begin alike
  const half = Math.floor(longest / 2);
  return name.length <= longest ? name : `${name.slice(0, half)}\u2026${name.slice(1 - half)}`;
};

function put(id, chart, caption) {
  const place = document.getElementById(id);
  place.querySelector(".chart").replaceChildren(chart);
  if (caption) place.querySelector("figcaption").textContent = caption;
}

function followTheme(redraw) { // the system's, until the button says otherwise; kept nowhere. Paper is light
  const button = document.querySelector("button.theme");
  const label = () => { button.textContent = dark() ? "Light mode" : "Dark mode"; };
  button.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; label(); redraw(); });
  system.addEventListener("change", () => { label(); redraw(); });
  addEventListener("beforeprint", () => {
    printing = true;
    document.querySelectorAll("details:not(.theory)").forEach((each) => { each.open = true; });
    redraw();
  });
  addEventListener("afterprint", () => { printing = false; redraw(); });
  label();
}

const WEAK = ["#D55E00", "#0072B2", "#009E73"];
const TABLES = [["weights", "class_weights", "class weight", 1], ["accuracies", "class_robust_accuracy", "validation accuracy under attack (%)", 100]];

function apart(ends, highest) { // so that names do not cover each other
  ends.forEach((d, i) => { d.at = i ? Math.max(d.value, ends[i - 1].at + highest / 16) : d.value; });
  return ends;
}

function epochs(run, classes, many) { // run: title and log
  if (many) return epochBands(run, classes);
  const lines = (table) => table.flatMap((row, t) => row.map((value, k) => ({ epoch: t + 1, class: classes[k], value })));
  const last = run.log.class_robust_accuracy.at(-1);
  const names = d3.sort(classes.keys(), (k) => last[k]).slice(0, 3).map((k) => classes[k]);
  const weak = (d) => names.includes(d.class);
  const stroke = (d) => (weak(d) ? tone(WEAK[names.indexOf(d.class)]) : "var(--pale)");
  for (const [id, key, label, scale] of TABLES) {
    const rows = lines(run.log[key]).map((d) => ({ ...d, value: scale * d.value }));
    const ends = d3.sort(rows.filter((d) => d.epoch === run.log[key].length && weak(d)), (d) => d.value);
    draw(id, run, label, [
      Plot.lineY(rows.filter((d) => !weak(d)), { x: "epoch", y: "value", z: "class", stroke: "var(--pale)" }),
      Plot.lineY(rows.filter(weak), { x: "epoch", y: "value", z: "class", stroke, strokeWidth: 2 }),
      Plot.dot(rows.length === classes.length ? rows : [], { x: "epoch", y: "value", fill: stroke }), // one epoch is no line
    ], apart(ends, d3.max(rows, (d) => d.value)), (d) => WEAK[names.indexOf(d.class)], rows);
    caption(id, run, `${label} of each class over the epochs.`, names);
  }
}

function epochBands(run, classes) { // the classes as bands, and the three weakest as lines
  const names = run.log.weakest.map((k) => classes[k]);
  for (const [id, key, label, scale] of TABLES) {
    const { bands, lines } = run.log[key];
    const rows = bands.map((q, t) => ({ epoch: t + 1, low: scale * q[0], tenth: scale * q[1], middle: scale * q[2], ninth: scale * q[3], high: scale * q[4] }));
    const weak = lines.flatMap((line, i) => line.map((value, t) => ({ epoch: t + 1, class: names[i], color: WEAK[i], value: scale * value })));
    const ends = d3.sort(weak.filter((d) => d.epoch === rows.length), (d) => d.value);
    draw(id, run, label, [
      Plot.areaY(rows, { x: "epoch", y1: "low", y2: "high", fill: "var(--band)" }),
      Plot.areaY(rows, { x: "epoch", y1: "tenth", y2: "ninth", fill: "var(--band-inner)" }),
      Plot.lineY(rows, { x: "epoch", y: "middle", stroke: "var(--soft)" }),
      Plot.lineY(weak, { x: "epoch", y: "value", z: "class", stroke: (d) => tone(d.color), strokeWidth: 2 }),
      Plot.dot(rows.length === 1 ? weak : [], { x: "epoch", y: "value", fill: (d) => tone(d.color) }),
    ], apart(ends, d3.max(rows, (d) => d.high)), (d) => d.color, weak);
    caption(id, run, `${label} over the epochs. Grey: all classes, darker without the lowest and the highest tenth; line: the median.`, names);
  }

}

function draw(id, run, label, marks, ends, color, pointed) {
  put(id, Plot.plot({
    width: Math.min(500, width(id)), height: 280, marginRight: 110,
    style, ariaLabel: `${label} of each class over the epochs, ${run.title}`,
    x: { label: "epoch", interval: 1, ticks: 6, tickFormat: "d" }, y: { label, grid: true, zero: true },
    marks: [
      ...marks,
      run.log.kept ? Plot.ruleX([run.log.kept], { stroke: "var(--soft)", strokeDasharray: "3 3" }) : null,
      Plot.text(ends, { x: "epoch", y: "at", text: (d) => short(d.class, 15), textAnchor: "start", dx: 6, fill: (d) => legible(color(d)), fontWeight: 600 }),
      Plot.tip(pointed, Plot.pointer({ x: "epoch", y: "value", title: (d) => `${d.class}, epoch ${d.epoch}: ${d.value.toFixed(2)}` })),
    ],
  }));
}

function caption(id, run, what, names) {
  const kept = run.log.kept ? ` Dashed: the epoch that was kept, ${run.log.kept}.` : "";
  document.querySelector(`#${id} figcaption`).textContent = `${run.title}: ${what} In colour the three weakest at the end: ${names.join(", ")}.${kept}`;
}
