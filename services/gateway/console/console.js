// The console: reads /v2/trireme/status every second and draws it. Whatever comes from the server or from a model gets
// into the page as text (textContent, setAttribute), never as markup.
"use strict";

const PERIOD = 1000;
const LIMIT = 10000;
const GONE_FOR = 10000;

const find = (id) => document.getElementById(id);
let headers = {};
let before = null;
let shown = null;
let rates = new Map();
const gone = new Map();

// === Making elements ===

function make(name, text, ...classes) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  element.classList.add(...classes);
  return element;
}

function draw(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function row(cells, ...classes) {
  const line = make("tr", undefined, ...classes);
  for (const cell of cells) line.append(cell instanceof Node ? cell : make("td", cell));
  return line;
}

const cut = (text, length) => (text.length > length ? text.slice(0, length - 1) + "…" : text);
const millis = (seconds) => (seconds === null || seconds === undefined ? "–" : (seconds * 1000).toFixed(2) + " ms");
const key = (model) => (model.version === null ? model.name : `${model.name}:${model.version}`);

function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${seconds.toFixed(1)} s`;
}

// === Asking ===

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers, cache: "no-store", signal: AbortSignal.timeout(options.limit ?? LIMIT) });
  const text = await response.text();
  let json = null;
  try { json = JSON.parse(text); } catch { /* An error of something between here and the gateway. */ }
  if (response.status === 401 || response.status === 403) find("access").hidden = false;
  if (!response.ok || json === null) throw new Error(`${response.status}: ${json?.error ?? cut(text, 300)}`);
  return { json, timing: response.headers.get("server-timing") };
}

async function follow() {
  for (;;) {
    if (!document.hidden) {
      try {
        show((await ask("/v2/trireme/status")).json);
      } catch (error) {
        state(`no status: ${error.message}`, "bad");
      }
    }
    await new Promise((resolve) => setTimeout(resolve, PERIOD));
  }
}

function state(text, kind) {
  const element = find("state");
  if (element.textContent !== text) element.textContent = text;
  element.className = kind;
}

// === Showing ===

function show(now) {
  const unready = now.models.filter((model) => !model.ready).length;
  state(now.ready ? "ready" : `not ready: ${unready} of ${now.models.length} models are missing`, now.ready ? "good" : "bad");
  const elapsed = before ? now.time - before.time : 0;
  if (elapsed > 0) {
    rates = new Map();
    const earlier = new Map(before.models.map((model) => [key(model), model]));
    for (const model of now.models) {
      const was = earlier.get(key(model));
      if (was?.counters && model.counters) {
        rates.set(key(model), Math.max(0, model.counters.requests - was.counters.requests) / elapsed);
      }
    }
  }
  showModels(now, rates);
  showWorkers(now);
  choices(find("pipeline"), now.models.filter((model) => model.steps).map(key));
  choices(find("model"), now.models.filter((model) => model.ready && !model.decoupled).map(key));
  showGraph(now, rates);
  if (!before) showInputs(now);
  if (!before || elapsed > 0) before = now;
  shown = now;
}

function showModels(now, rates) {
  const lines = now.models.flatMap((model) => {
    const { queue, counters, latencies } = model;
    const failed = Object.values(counters?.failures ?? {}).reduce((sum, count) => sum + count, 0);
    const rate = rates.get(key(model));
    const line = row([
      key(model), make("td", model.ready ? "ready" : "not ready", model.ready ? "good" : "bad"), model.workers ?? "–",
      rate === undefined ? "–" : rate.toFixed(1), failed, queue?.waiting ?? "–", queue?.delivered ?? "–",
      queue ? age(queue.oldest_seconds) : "–", millis(latencies?.request.p50_seconds), millis(latencies?.request.p99_seconds),
      millis(latencies?.transit.p50_seconds), millis(latencies?.worker_queue.p50_seconds), millis(latencies?.compute.p50_seconds),
    ]);
    if (model.ready || !model.reason) return [line];
    const reason = make("td", model.reason, "reason");
    reason.colSpan = 13;
    return [line, row([reason])];
  });
  find("models").replaceChildren(...lines);
}

function showWorkers(now) {
  const there = new Map();
  for (const gateway of now.gateways) {
    there.set(`gateway ${gateway.name}`, [gateway.name, "gateway", "", gateway.uptime_seconds, `${gateway.in_flight} requests in flight`]);
  }
  for (const worker of now.workers) {
    const models = worker.models.map((model) => {
      const name = `${model.model}:${model.version}`;
      return model.state === "READY" ? name : `${name} (${model.state.toLowerCase()})`;
    });
    there.set(`worker ${worker.name}`, [worker.name, worker.service, worker.host, worker.uptime_seconds, models.join(", ")]);
  }
  const time = performance.now();
  for (const [name, cells] of show.there ?? []) if (!there.has(name) && !gone.has(name)) gone.set(name, { cells, at: time });
  for (const [name, { at }] of gone) if (there.has(name) || time - at > GONE_FOR) gone.delete(name);
  show.there = there;
  const line = ([name, service, host, up, models], ...classes) => row([name, service, host, classes.length ? "gone" : age(up), make("td", models, "long")], ...classes);
  find("workers").replaceChildren(
    ...[...there.values()].map((cells) => line(cells)),
    ...[...gone.values()].map(({ cells }) => line(cells, "gone")),
  );
}

function choices(select, names) {
  const known = [...select.options].map((option) => option.value);
  if (known.length === names.length && known.every((name, i) => name === names[i])) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => { const option = make("option", name); option.value = name; return option; }));
  if (names.includes(chosen)) select.value = chosen;
  else if (select.id === "model" && shown) showInputs(shown);
}

// === The pipeline ===

const BOX = { width: 190, height: 84, gapX: 120, gapY: 26, margin: 10 };

// Nodes are the request, the steps and the answer; an edge is a tensor that one makes and another takes. A node's column
// is the longest way to it.
function graph(model) {
  const nodes = [{ end: "request", column: 0 }];
  const makers = new Map(model.inputs.map((input) => [input.name, 0]));
  const edges = new Map();
  const link = (from, to, tensor) => {
    const id = `${from} ${to}`;
    if (!edges.has(id)) edges.set(id, { from, to, tensors: [] });
    edges.get(id).tensors.push(tensor);
  };
  model.steps.forEach((step, i) => {
    const sources = step.inputs.filter((input) => makers.has(input.tensor));
    const column = 1 + Math.max(0, ...sources.map((input) => nodes[makers.get(input.tensor)].column));
    nodes.push({ step, column });
    for (const input of sources) link(makers.get(input.tensor), i + 1, input.tensor);
    for (const output of step.outputs) makers.set(output.tensor, i + 1);
  });
  nodes.push({ end: "answer", column: 1 + Math.max(...nodes.map((node) => node.column)) });
  for (const output of model.outputs) if (makers.has(output.name)) link(makers.get(output.name), nodes.length - 1, output.name);
  const heights = [];
  for (const node of nodes) node.line = (heights[node.column] = (heights[node.column] ?? -1) + 1);
  return { nodes, edges: [...edges.values()], columns: heights.length, lines: Math.max(...heights) + 1 };
}

function showGraph(now, rates) {
  const svg = find("graph");
  const model = now.models.find((model) => model.steps && key(model) === find("pipeline").value);
  svg.replaceChildren();
  if (!model) return;
  const { nodes, edges, columns, lines } = graph(model);
  const x = (node) => BOX.margin + node.column * (BOX.width + BOX.gapX);
  const y = (node) => BOX.margin + node.line * (BOX.height + BOX.gapY);
  const width = columns * (BOX.width + BOX.gapX) - BOX.gapX + 2 * BOX.margin;
  const height = lines * (BOX.height + BOX.gapY) - BOX.gapY + 2 * BOX.margin;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", Math.min(width, 1140));
  svg.setAttribute("aria-label", `${key(model)}: ${model.steps.map((step) => step.model).join(", then ")}`);
  for (const { from, to, tensors } of edges) {
    const [a, b] = [nodes[from], nodes[to]];
    // Ways past a column keep below its boxes.
    const far = b.column - a.column > 1 ? BOX.height / 2 - 6 : 0;
    const [x1, y1, x2, y2] = [x(a) + BOX.width, y(a) + BOX.height / 2 + far, x(b), y(b) + BOX.height / 2 + far];
    const bend = far ? (x2 - x1) * 0.2 : (x2 - x1) / 2;
    const sink = far ? BOX.height / 2 + 14 : 0;
    svg.append(
      draw("path", { class: "edge", d: `M${x1},${y1} C${x1 + bend},${y1 + sink} ${x2 - bend},${y2 + sink} ${x2 - 7},${y2}` }),
      draw("path", { class: "tip", d: `M${x2},${y2} l-8,-4 v8 z` }),
      draw("text", { class: "faint", x: (x1 + x2) / 2, y: far ? (y1 + y2) / 2 + sink * 0.75 + 12 : (y1 + y2) / 2 - 6, "text-anchor": "middle" }, cut(tensors.join(", "), far ? 60 : 17)),
    );
  }
  for (const node of nodes) svg.append(...box(node, x(node), y(node), model, now, rates));
  if (edges.some(({ from, to }) => nodes[to].column - nodes[from].column > 1)) {
    svg.setAttribute("viewBox", `0 0 ${width} ${height + 46}`);
  }
}

function box(node, x, y, whole, now, rates) {
  const text = (line, content, kind) => draw("text", { class: kind, x: x + 12, y: y + 20 + 17 * line }, content);
  const frame = (kind) => draw("rect", { class: kind, x, y, width: BOX.width, height: BOX.height, rx: 7 });
  if (node.end) {
    const rate = rates.get(key(whole));
    const tensors = (node.end === "request" ? whole.inputs : whole.outputs).map((tensor) => tensor.name).join(", ");
    const detail = node.end === "request" ? `${rate === undefined ? "–" : rate.toFixed(1)} per s` : `p50 ${millis(whole.latencies.request.p50_seconds)}`;
    return [frame("end"), text(0, node.end, "name"), text(1, cut(tensors, 26), "faint"), text(2, detail, "")];
  }
  const { step } = node;
  const versions = now.models.filter((model) => model.name === step.model && (step.version === null || model.version === step.version));
  const model = versions.findLast((model) => model.ready) ?? versions.at(-1);
  const rate = model && rates.get(key(model));
  const queue = model?.queue;
  return [
    frame(model?.ready ? "ready" : "unready"),
    text(0, cut(step.model, 24), "name"),
    text(1, `${model?.workers ?? 0} ${model?.workers === 1 ? "worker" : "workers"}, ${rate === undefined ? "–" : rate.toFixed(1)} per s`, ""),
    text(2, queue ? `${queue.waiting} queued, ${queue.delivered} in work` : "no queue", ""),
    text(3, `wait ${millis(model?.latencies?.worker_queue.p50_seconds)} run ${millis(model?.latencies?.compute.p50_seconds)}`, "faint"),
  ];
}

// === Trying a model ===

function chosen() {
  return shown?.models.find((model) => key(model) === find("model").value) ?? null;
}

function showInputs(now) {
  const model = now.models.find((model) => key(model) === find("model").value);
  find("inputs").replaceChildren(...(model?.inputs ?? []).flatMap((input, i) => {
    const label = make("label", `${input.name}  ${input.datatype}[${input.shape.join(", ")}]${input.optional ? "  (may stay empty)" : ""}`);
    const area = make("textarea");
    area.id = `input-${i}`;
    area.rows = 2;
    label.htmlFor = area.id;
    return [label, area];
  }));
  showCode(model);
}

// The code of clients for the chosen model (client.js).
function showCode(model) {
  const code = model ? clients(model, location.origin) : [];
  const select = find("dialect");
  const chosen = select.value;
  select.replaceChildren(...code.map(({ id, name }) => { const option = make("option", name); option.value = id; return option; }));
  if (code.some(({ id }) => id === chosen)) select.value = chosen;
  find("code").textContent = code.find(({ id }) => id === select.value)?.text ?? "";
}

function shape(data) {
  return Array.isArray(data) ? [data.length, ...(data.length ? shape(data[0]) : [])] : [];
}

function tensor(input, text) {
  const { name, datatype } = input;
  if (datatype !== "BYTES" || text.trimStart().startsWith("[")) {
    let data;
    try { data = JSON.parse(text); } catch (error) { throw new Error(`${name}: ${error.message}`); }
    if (!Array.isArray(data)) data = [data];
    return { name, datatype, shape: shape(data), data };
  }
  const data = text.split("\n").filter((line) => line !== "");
  return { name, datatype, shape: [data.length, ...input.shape.slice(1).map(() => 1)], data };
}

function describe(output) {
  const lines = [`${output.name}  ${output.datatype}[${output.shape.join(", ")}]`];
  const width = Math.max(1, output.shape.slice(1).reduce((product, size) => product * size, 1));
  for (let start = 0; start < Math.min(output.data.length, 20 * width); start += width) {
    const line = output.data.slice(start, start + Math.min(width, 12)).map((value) => (typeof value === "number" && !Number.isInteger(value) ? value.toFixed(5) : String(value)));
    lines.push("  " + line.join("  ") + (width > 12 ? `  … ${width - 12} more` : ""));
  }
  return lines.join("\n");
}

async function answer(event) {
  event.preventDefault();
  const model = chosen();
  const place = find("answer");
  if (!model) return;
  find("ask").disabled = true;
  place.textContent = "asking…";
  try {
    const texts = model.inputs.map((input, i) => ({ input, text: find(`input-${i}`).value }));
    const inputs = texts.filter(({ input, text }) => !(input.optional && text === "")).map(({ input, text }) => tensor(input, text));
    const path = `/v2/models/${model.name}/versions/${model.version}/infer`;
    const { json, timing } = await ask(path, { method: "POST", body: JSON.stringify({ inputs }), limit: 60000 });
    const steps = (timing ?? "").split(", ").filter(Boolean).map((step) => "  " + step.replaceAll(";", "  ").replaceAll('"', ""));
    place.textContent = [...json.outputs.map(describe), "", ...steps].join("\n");
  } catch (error) {
    place.textContent = error.message;
  }
  find("ask").disabled = false;
}

find("try").addEventListener("submit", answer);
find("try").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("try").requestSubmit();
});
find("model").addEventListener("change", () => shown && showInputs(shown));
find("dialect").addEventListener("change", () => showCode(chosen()));
find("pipeline").addEventListener("change", () => shown && showGraph(shown, rates));
find("access").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = find("key").value.trim();
  const header = text.match(/^([A-Za-z0-9-]+):\s*(.+)$/);
  headers = text === "" ? {} : header ? { [header[1]]: header[2] } : { Authorization: `Bearer ${text}` };
});
follow();
