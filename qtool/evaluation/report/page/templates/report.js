"use strict";
// Sorting, filters and the layer view. Without this script the page lacks only the histograms of
// single layers, which are drawn here from the JSON when a layer is selected.

const report = JSON.parse(document.getElementById("data").textContent);
const layers = new Map((report.layers ? report.layers.layers : []).map((e) => [e.name, e]));
const SVG = "http://www.w3.org/2000/svg";

// --- tables ----------------------------------------------------------------------------------

function key(row, column) {
  const cell = row.cells[column];
  const value = cell.dataset.v;
  if (value === undefined) return cell.textContent.trim();
  return value === "" ? null : Number(value);
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === "") return 1;
  if (b === null || b === "") return -1;
  return typeof a === "number" && typeof b === "number"
    ? a - b
    : String(a).localeCompare(String(b), undefined, { numeric: true });
}

function sort(table, column) {
  const head = table.tHead.rows[0].cells;
  const down = head[column].getAttribute("aria-sort") === "ascending";
  for (const cell of head) cell.removeAttribute("aria-sort");
  head[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  for (const view of table.querySelectorAll(".view")) close(view);
  const rows = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
  const empty = (v) => v === null || v === "";
  rows.sort(([a], [b]) => (empty(a) || empty(b) ? compare(a, b) : down ? compare(b, a) : compare(a, b)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function filter(input) {
  const table = document.getElementById(input.dataset.table);
  const wanted = input.value.trim().toLowerCase();
  let shown = 0;
  for (const view of table.querySelectorAll(".view")) close(view);
  for (const row of table.tBodies[0].rows) {
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
    shown += row.hidden ? 0 : 1;
  }
  const count = document.querySelector(`[data-count="${table.id}"]`);
  count.textContent = wanted ? `${shown} of ${table.tBodies[0].rows.length}` : "";
}

for (const table of document.querySelectorAll("table")) {
  for (const head of table.tHead.rows[0].cells) {
    const row = table.tBodies[0].rows[table.tBodies[0].rows.length - 1];
    if (row && row.cells[head.cellIndex].classList.contains("num")) head.classList.add("num");
  }
}

// --- the layer view --------------------------------------------------------------------------

function element(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
  if (text !== undefined) node.textContent = text;
  return node;
}

const short = (x) => (x === null ? "" : Number(x.toPrecision(3)).toString());

function histogram(title, bars) {
  const width = 420, height = 150, left = 8, right = 412, floor = 118, top = 14;
  const start = Math.min(bars.least, bars.low), stop = Math.max(bars.most, bars.high);
  const x = (v) => left + ((v - start) / (stop - start || 1)) * (right - left);
  const most = Math.max(...bars.counts.map((c) => Math.log1p(c)), 1e-9);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  svg.append(element("rect", { class: "range", x: x(bars.low), y: top, width: Math.max(1, x(bars.high) - x(bars.low)), height: floor - top }));
  const step = (bars.stop - bars.start) / bars.counts.length;
  const half = (bars.high - bars.low) / 510; // of a quantization step: codes round up to there
  bars.counts.forEach((count, i) => {
    if (!count) return;
    // the outer bins are wider than the values in them
    const from = Math.max(bars.start + i * step, bars.least), to = Math.max(from, Math.min(bars.start + (i + 1) * step, bars.most));
    const tall = (Math.log1p(count) / most) * (floor - top);
    const lost = to < bars.low - half || from > bars.high + half;
    svg.append(element("rect", { class: lost ? "lost" : "count", x: x(from), y: floor - tall, width: Math.max(0.7, x(to) - x(from) - 0.4), height: tall }));
  });
  svg.append(element("line", { class: "axis", x1: left, x2: right, y1: floor, y2: floor }));
  for (const [v, anchor] of [[bars.low, "start"], [bars.high, "end"]]) {
    svg.append(element("line", { class: "end", x1: x(v), x2: x(v), y1: top - 4, y2: floor + 4 }));
    svg.append(element("text", { x: x(v), y: floor + 16, "text-anchor": anchor }, short(v)));
  }
  if (start < 0 && stop > 0) svg.append(element("text", { x: x(0), y: height - 4, "text-anchor": "middle" }, "0"));
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.textContent = `${title}: values from ${short(bars.least)} to ${short(bars.most)}; the quantized range is green, ` +
    `${(100 * bars.clipped).toPrecision(2)} % of the values saturate. Logarithmic heights.`;
  figure.append(svg, caption);
  return figure;
}

function close(view) {
  view.previousElementSibling.querySelector(".open").setAttribute("aria-expanded", "false");
  view.remove();
}

function toggle(button) {
  const row = button.closest("tr");
  const next = row.nextElementSibling;
  if (next && next.classList.contains("view")) return close(next);
  const layer = layers.get(row.dataset.layer);
  const view = document.createElement("tr"), cell = document.createElement("td"), pair = document.createElement("div");
  view.className = "view";
  pair.className = "pair";
  cell.colSpan = row.cells.length;
  if (layer.activation) pair.append(histogram(`Result of ${layer.name}`, layer.activation));
  if (layer.weight) pair.append(histogram("Weights", layer.weight));
  if (!pair.children.length) pair.textContent = "No histogram for this layer.";
  cell.append(pair);
  view.append(cell);
  row.after(view);
  button.setAttribute("aria-expanded", "true");
}

// --- rows that links lead to ------------------------------------------------------------------

function show(id) {
  const row = document.getElementById(id);
  if (!row) return;
  for (let each = row.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
  if (row.hidden) {
    const input = document.querySelector(`input[data-table="${row.closest("table").id}"]`);
    input.value = "";
    filter(input);
  }
  const button = row.querySelector(".open[aria-expanded=false]");
  if (button) toggle(button);
  const around = row.closest(".scroll");
  if (around && row.matches("tr")) around.scrollLeft = 0;
  row.scrollIntoView({ block: "center" });
}

// --- tables that are wider than the page ---------------------------------------------------------

function hint() {
  for (const table of document.querySelectorAll(".scroll > table")) {
    const around = table.parentElement, text = around.previousElementSibling;
    if (text && text.classList.contains("hint")) text.hidden = around.scrollWidth <= around.clientWidth;
  }
}

// --- events -------------------------------------------------------------------

document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (link && link.hash && link.hash === location.hash) show(link.hash.slice(1));
  const button = event.target.closest("button");
  if (!button) return;
  if (button.classList.contains("open")) return toggle(button);
  const head = button.closest("thead th");
  if (head) sort(head.closest("table"), head.cellIndex);
});
document.addEventListener("input", (event) => {
  if (event.target.dataset.table) filter(event.target);
});
document.addEventListener("toggle", hint, true);
window.addEventListener("resize", hint);
window.addEventListener("hashchange", () => show(location.hash.slice(1)));
hint();
if (location.hash) show(location.hash.slice(1));
window.addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details")) each.open = true;
});
