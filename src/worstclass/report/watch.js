"use strict";
// Asks the server every two seconds how far the runs are, and draws the chosen one when it has changed.
const EVERY = 2000; // milliseconds
let shown = "", text = "";

const ago = (seconds) => (seconds === null ? "" : seconds < 120 ? `${seconds} s ago` : seconds < 7200 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`);

function fill(table, rows) { // cells are text, or elements
  const body = document.querySelector(`table.${table} tbody`);
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((cell) => {
      const place = document.createElement("td");
      place.append(cell);
      return place;
    }));
    return row;
  }));
}

function list(runs) {
  fill("runs", runs.map((run) => {
    const link = document.createElement("a");
    link.href = `#${encodeURIComponent(run.name)}`;
    link.textContent = run.name;
    if (run.name === shown) link.setAttribute("aria-current", "true");
    if (run.note) return [link, `${run.epoch}`, "", "", run.note, "", ""];
    return [link, `${run.epoch} / ${run.epochs}`, percent(run.average), percent(run.worst), run.worst_class, `${run.kept ?? ""}`, ago(run.age)];
  }));
}

function redraw() {
  const run = text ? JSON.parse(text) : {};
  document.getElementById("run").textContent = shown;
  document.querySelector("table.classes").hidden = !run.log;
  if (!run.log) {
    for (const id of ["weights", "accuracies"]) put(id, "", "No epoch has ended yet.");
    return;
  }
  epochs(run, run.classes, run.many);
  const order = d3.sort(d3.range(run.classes.length), (k) => run.now.accuracy[k]);
  fill("classes", order.map((k) => [run.classes[k], percent(run.now.accuracy[k]), run.now.weight[k].toFixed(2)]));
}

async function ask(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.text();
}

async function look() {
  const status = document.querySelector("[role=status]");
  try {
    const runs = JSON.parse(await ask("/runs.json"));
    const chosen = decodeURIComponent(location.hash.slice(1));
    const training = runs.find((run) => run.epoch < run.epochs) ?? runs[0];
    const before = shown;
    shown = (runs.find((run) => run.name === chosen) ?? runs.find((run) => run.name === shown) ?? training).name;
    list(runs);
    const found = await ask(`/run.json?name=${encodeURIComponent(shown)}`);
    if (found !== text || shown !== before) { text = found; redraw(); }
    status.textContent = `${runs.length} run${runs.length > 1 ? "s" : ""}, ${new Date().toLocaleTimeString()}`;
    document.body.dataset.ready = "yes";
  } catch (error) {
    status.textContent = `Nothing new: the server does not answer (${error.message}).`;
  }
}

let pending;
async function tick() {
  clearTimeout(pending);
  if (!document.hidden) await look();
  pending = setTimeout(tick, EVERY);
}

followTheme(redraw);
addEventListener("hashchange", tick);
addEventListener("resize", redraw);
document.addEventListener("visibilitychange", tick);
tick();
