// The console: reads /v2/trireme/status every second and draws it. Whatever comes from the server or from a model gets
// into the page as text (textContent, setAttribute), never as markup.
"use strict";

const PERIOD = 1000;
const LIMIT = 10000;
const GONE_FOR = 10000;
// Readings of the status between two of the batches.
const BATCHES_EVERY = 3;
// How long a button that cancels waits for its second click.
const SURE_FOR = 4000;
// Seconds that sparklines show, and those of one bar.
const SPAN = 300;
const BUCKET = 5;
const SPARK = { width: 60, height: 14 };
const NO_MODELS = "no models: the model repository is empty, and no worker serves one";

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

// Changes a property only where it differs: what the user points at, reads aloud or selects stays as it is.
function set(object, name, value) {
  if (object[name] !== value) object[name] = value;
}

// Shows lines in a table. A line with a known id keeps its elements. A cell is a text, or an object with `text`, `kind` (a class)
// and `part`: a function that gets the element beside the text, or null, and returns it renewed. The head of the table has the
// classes and names of the columns. A line with a `note` is one cell over all columns.
function fill(table, lines) {
  const [body, heads] = [table.tBodies[0], table.tHead.rows[0].cells];
  const known = new Map([...body.rows].map((line) => [line.dataset.id, line]));
  const wanted = lines.map(({ id, kind = "", cells, note }) => {
    const line = known.get(id) ?? make("tr");
    set(line.dataset, "id", id);
    set(line, "className", kind);
    if (note !== undefined) {
      const cell = line.cells[0] ?? line.appendChild(make("td"));
      set(cell, "colSpan", heads.length);
      set(cell, "textContent", note);
      return line;
    }
    cells.forEach((content, i) => {
      const cell = line.cells[i] ?? line.appendChild(make(i === 0 ? "th" : "td", ""));
      if (i === 0) set(cell, "scope", "row");
      set(cell.dataset, "label", heads[i].textContent);
      place(cell, content, heads[i].className);
    });
    return line;
  });
  if (wanted.length !== body.rows.length || wanted.some((line, i) => line !== body.rows[i])) body.replaceChildren(...wanted);
}

function place(cell, content, column) {
  const { text, kind = "", part } = content instanceof Object ? content : { text: content };
  set(cell, "className", `${column} ${kind}`.trim());
  if (!cell.firstChild) cell.append(document.createTextNode(""));
  set(cell.firstChild, "data", String(text ?? "–"));
  const old = cell.lastElementChild;
  const renewed = part ? part(old) : null;
  if (old && old !== renewed) old.remove();
  if (renewed && old !== renewed) cell.append(renewed);
}

const cut = (text, length) => (text.length > length ? text.slice(0, length - 1) + "…" : text);
const millis = (seconds) => (typeof seconds === "number" ? (seconds * 1000).toFixed(2) : undefined);
const inMillis = (seconds) => (typeof seconds === "number" ? `${millis(seconds)} ms` : "–");
const perSecond = (rate) => rate?.toFixed(rate >= 100 ? 0 : 1);
const key = (model) => (model.version === null ? model.name : `${model.name}:${model.version}`);

function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${seconds.toFixed(1)} s`;
}

// === Asking ===

// The path under which the server is: behind a proxy the page is not at /ui.
const BASE = location.pathname.replace(/\/ui\/?$/, "");

async function ask(path, options = {}) {
  const response = await fetch(BASE + path, { ...options, headers, cache: "no-store", signal: AbortSignal.timeout(options.limit ?? LIMIT) });
  const text = await response.text();
  let json = null;
  try { json = JSON.parse(text); } catch { /* An error of something between here and the gateway. */ }
  if (response.status === 401 || response.status === 403) find("access").hidden = false;
  else if (response.ok) find("access").hidden = true;
  if (!response.ok || json === null) throw new Error(`${response.status}: ${json?.error?.message ?? json?.error ?? cut(text, 300)}`);
  return { json, timing: response.headers.get("server-timing") };
}

async function follow() {
  for (let tick = 0; ; tick += 1) {
    if (!document.hidden) {
      try {
        show((await ask("/v2/trireme/status")).json);
      } catch (error) {
        state(`no status: ${error.message}`, "bad");
      }
      if (shown?.jobs && tick % BATCHES_EVERY === 0) await followBatches();
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
  const [problem, ...others] = now.problems;
  const more = others.length ? ` (and ${others.length} more)` : "";
  if (problem) state(`${now.ready ? "ready" : "not ready"}: ${problem}${more}`, "bad");
  else if (now.models.length === 0) state(NO_MODELS, now.ready ? "" : "bad");
  else if (now.ready) state("ready", "good");
  else state(unready ? `not ready: ${unready} of ${now.models.length} models are missing` : "not ready", "bad");
  set(find("version"), "textContent", now.deployment ? `${now.version}, deployment ${now.deployment}` : now.version);
  find("batches-section").hidden = !now.jobs;
  set(find("span"), "textContent", now.latencies_since_start ? "latencies: since the start, in ms" : "latencies: the last minute, in ms");
  const elapsed = before ? now.time - before.time : 0;
  if (elapsed > 0) measure(now, elapsed);
  showModels(now, rates);
  showWorkers(now);
  choices(find("pipeline"), now.models.filter((model) => model.steps).map(key));
  find("pipeline-section").hidden = find("pipeline").options.length === 0;
  choices(find("model"), now.models.filter((model) => model.ready && !model.decoupled).map(key));
  showGraph(now, rates);
  if (!before) showInputs(now);
  if (!before || elapsed > 0) before = now;
  shown = now;
}

// The version of a model that a step runs: the one that it names, or the latest that is ready.
function hosted(now, step) {
  const versions = now.models.filter((model) => model.name === step.model && (step.version === null || model.version === step.version));
  return versions.findLast((model) => model.ready) ?? versions.at(-1);
}

// Ensembles have their parts beneath them. A model that is part of no ensemble stands for itself.
function showModels(now, rates) {
  const parts = new Map(now.models.filter((model) => model.steps).map((model) => {
    const models = model.steps.map((step) => hosted(now, step)).filter(Boolean);
    return [model, [...new Set(models)]];
  }));
  const inside = new Set([...parts.values()].flat());
  const lines = now.models.filter((model) => !inside.has(model)).flatMap((model) => [
    ...describeModel(model, rates, key(model), "", parts.has(model) ? fold(key(model)) : undefined),
    ...(folded.has(key(model)) ? [] : parts.get(model) ?? []).flatMap((part) => describeModel(part, rates, `${key(model)} ${key(part)}`, "part")),
  ]);
  fill(find("models"), lines.length ? lines : [{ id: "", kind: "faint", note: NO_MODELS }]);
}

// The ensembles whose parts are out of sight.
const folded = new Set();

// The button in an ensemble's line that folds its parts away, or shows them again.
const fold = (id) => (old) => {
  const button = old ?? make("button", "");
  if (!old) {
    button.className = "fold";
    button.setAttribute("aria-label", `parts of ${id}`);
    button.addEventListener("click", () => {
      if (!folded.delete(id)) folded.add(id);
      showModels(shown, rates);
    });
  }
  button.setAttribute("aria-expanded", String(!folded.has(id)));
  return button;
};

function describeModel(model, rates, id, kind, button) {
  const { queue, latencies } = model;
  const past = (name, words, format) => (old) => spark(old, lastMinutes.get(key(model)) ?? [], name, words, format);
  const failed = failures(model);
  const line = { id, kind, cells: [
    { text: key(model), part: button }, { text: model.ready ? "ready" : "not ready", kind: model.ready ? "good" : "bad" }, model.workers,
    { text: perSecond(rates.get(key(model))), part: past("rate", "requests per second", perSecond) },
    { text: failed, kind: failed ? "bad" : "", part: past("failed", "failed requests per second", perSecond) },
    queue ? { text: queue.waiting, part: past("queued", "requests in the queue", String) } : "–",
    queue?.delivered, queue ? age(queue.oldest_seconds) : "–", millis(latencies?.request.p50_seconds),
    { text: millis(latencies?.request.p99_seconds), part: past("p99", "p99 latency", inMillis) },
    millis(latencies?.transit.p50_seconds), millis(latencies?.worker_queue.p50_seconds), millis(latencies?.compute.p50_seconds),
  ] };
  return model.ready || !model.reason ? [line] : [line, { id: `${id} reason`, kind: `reason ${kind}`, note: model.reason }];
}

const failures = (model) => Object.values(model.counters?.failures ?? {}).reduce((sum, count) => sum + count, 0);

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
  const line = ([id, [name, service, host, up, models]], kind) => ({ id, kind, cells: [name, service, host, kind ? "gone" : age(up), models] });
  fill(find("workers"), [
    ...[...there].map((process) => line(process, "")),
    ...[...gone].map(([id, { cells }]) => line([id, cells], "gone")),
  ]);
}

function choices(select, names) {
  const known = [...select.options].map((option) => option.value);
  if (known.length === names.length && known.every((name, i) => name === names[i])) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => { const option = make("option", name); option.value = name; return option; }));
  if (names.includes(chosen)) select.value = chosen;
  else if (select.id === "model" && shown) showInputs(shown);
}

// === The last minutes ===

// By model: a point for each BUCKET of seconds in the last SPAN, with the highest reading in it.
const lastMinutes = new Map();

// Takes the rates since the last reading, and a point for each model.
function measure(now, elapsed) {
  const earlier = new Map(before.models.map((model) => [key(model), model]));
  rates = new Map();
  for (const model of now.models) {
    const was = earlier.get(key(model));
    if (!was?.counters || !model.counters) continue;
    const since = (count) => Math.max(0, count(model) - count(was)) / elapsed;
    rates.set(key(model), since((model) => model.counters.requests));
    remember(key(model), now.time, {
      rate: rates.get(key(model)), failed: since(failures), queued: model.queue?.waiting, p99: model.latencies.request.p99_seconds,
    });
  }
  for (const id of lastMinutes.keys()) if (!rates.has(id)) lastMinutes.delete(id);
}

function remember(id, time, readings) {
  const points = lastMinutes.get(id) ?? [];
  lastMinutes.set(id, points);
  const at = Math.floor(time / BUCKET);
  if (points.at(-1)?.at !== at) points.push({ at });
  const point = points.at(-1);
  for (const [name, value] of Object.entries(readings)) point[name] = Math.max(point[name] ?? 0, value ?? 0);
  while (points[0].at <= at - SPAN / BUCKET) points.shift();
}

// A small chart with a bar for each point; `old` is the one to renew.
function spark(old, points, name, words, format) {
  const { width, height } = SPARK;
  const svg = old ?? draw("svg", { class: `spark ${name}`, role: "img", viewBox: `0 0 ${width} ${height}`, width, height });
  if (!old) svg.append(draw("title", {}), draw("path", {}));
  const [title, path] = svg.children;
  const top = Math.max(0, ...points.map((point) => point[name]));
  const bar = (point) => {
    const x = width - 0.5 - (points.at(-1).at - point.at) * (width * BUCKET / SPAN);
    return `M${x},${height}v${-Math.max(1, (height * point[name]) / top).toFixed(1)}`;
  };
  set(title, "textContent", `${words}, last ${SPAN / 60} minutes: at most ${format(top)}`);
  path.setAttribute("d", points.filter((point) => point[name] > 0).map(bar).join(""));
  return svg;
}

// === Batches ===

async function followBatches() {
  try {
    const { json } = await ask("/v1/batches?limit=20");
    fill(find("batches"), json.data.flatMap(describeBatch));
    set(find("batches-note"), "textContent", json.data.length ? (json.has_more ? "Older ones: GET /v1/batches" : "") : "None yet: POST /v1/batches");
  } catch (error) {
    set(find("batches-note"), "textContent", `no batches: ${error.message}`);
  }
}

function describeBatch(batch) {
  const { total, completed, failed } = batch.request_counts;
  const done = completed + failed;
  const end = batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at ?? shown.time;
  const rate = batch.in_progress_at === null ? undefined : done / Math.max(1, end - batch.in_progress_at);
  const runs = ["scheduled", "validating", "in_progress"].includes(batch.status);
  const bar = (old) => {
    const element = old ?? make("progress");
    element.max = Math.max(1, total);
    element.value = done;
    element.setAttribute("aria-label", `${done} of ${total} lines`);
    return element;
  };
  const bad = batch.status === "failed" || batch.status === "expired";
  const line = { id: batch.id, cells: [
    batch.id, { text: batch.status.replace("_", " "), kind: bad ? "bad" : batch.status === "completed" ? "good" : "" }, batch.endpoint,
    { text: `${done} of ${total}`, part: bar }, { text: failed, kind: failed ? "bad" : "" }, perSecond(rate),
    runs && rate > 0 ? age((total - done) / rate) : "–", { text: "", part: runs ? (old) => old ?? cancelButton(batch.id) : undefined },
  ] };
  const faults = batch.errors?.data.map((fault, i) => ({ id: `${batch.id} ${i}`, kind: "reason", note: fault.message })) ?? [];
  return [line, ...faults];
}

// Cancels a batch with the second click.
function cancelButton(id) {
  const button = make("button");
  const name = (text) => {
    button.textContent = text;
    button.setAttribute("aria-label", `${text}: ${id}`);
  };
  name("cancel");
  let isSure = false;
  button.addEventListener("click", async () => {
    if (!isSure) {
      isSure = true;
      name("really cancel?");
      setTimeout(() => { isSure = false; name("cancel"); }, SURE_FOR);
      return;
    }
    button.disabled = true;
    try {
      await ask(`/v1/batches/${encodeURIComponent(id)}/cancel`, { method: "POST" });
      await followBatches();
    } catch (error) {
      set(find("batches-note"), "textContent", `not cancelled: ${error.message}`);
    }
    button.disabled = false;
  });
  return button;
}

// === The pipeline ===

const BOX = { width: 190, height: 84, margin: 10 };
// Where there is little width the pipeline goes down the page.
const narrow = matchMedia("(max-width: 640px)");

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
    const isSlowest = model.bottleneck?.step === i;
    const sources = step.inputs.filter((input) => makers.has(input.tensor));
    const column = 1 + Math.max(0, ...sources.map((input) => nodes[makers.get(input.tensor)].column));
    nodes.push({ step, column, isSlowest });
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
  set(find("bottleneck"), "textContent", model?.bottleneck ? `bottleneck: ${model.bottleneck.reason}` : "");
  set(find("space"), "textContent", model?.space ? `space ${model.space}` : "");
  if (!model) return;
  const { nodes, edges, columns, lines } = graph(model);
  const down = narrow.matches;
  // Lengths in the direction of the pipeline, and across it.
  const along = down ? { size: BOX.height, gap: 40 } : { size: BOX.width, gap: 120 };
  const across = down ? { size: BOX.width, gap: 30 } : { size: BOX.height, gap: 26 };
  const start = (node) => BOX.margin + node.column * (along.size + along.gap);
  const side = (node) => BOX.margin + node.line * (across.size + across.gap);
  const at = (a, b) => (down ? { x: b, y: a } : { x: a, y: b });
  const point = (a, b) => { const { x, y } = at(a, b); return `${x},${y}`; };
  const skips = ({ from, to }) => nodes[to].column - nodes[from].column > 1;
  const extent = at(columns * (along.size + along.gap) - along.gap + 2 * BOX.margin, lines * (across.size + across.gap) - across.gap + 2 * BOX.margin);
  // Ways past a column keep beside its boxes.
  if (edges.some(skips)) extent[down ? "x" : "y"] += down ? 130 : 46;
  svg.setAttribute("viewBox", `0 0 ${extent.x} ${extent.y}`);
  // As large as its texts want, or as small as the page wants while they can be read.
  svg.style.width = `max(${Math.round(extent.x * 0.7)}px, min(100%, ${extent.x}px))`;
  svg.setAttribute("aria-label", `${key(model)}: ${model.steps.map((step) => step.model).join(", then ")}`);
  for (const edge of edges) {
    const [from, to] = [nodes[edge.from], nodes[edge.to]];
    const far = skips(edge) ? across.size / 2 - 6 : 0;
    const [a1, b1, a2, b2] = [start(from) + along.size, side(from) + across.size / 2 + far, start(to), side(to) + across.size / 2 + far];
    const bend = far ? (a2 - a1) * 0.2 : (a2 - a1) / 2;
    const sink = far ? (down ? 40 : across.size / 2 + 14) : 0;
    const middle = at((a1 + a2) / 2, (b1 + b2) / 2 + sink * 0.75);
    const label = down
      ? { x: middle.x + 8, y: middle.y + 3, "text-anchor": "start" }
      : { x: middle.x, y: middle.y + (far ? 12 : -6), "text-anchor": "middle" };
    const tip = at(a2, b2);
    svg.append(
      draw("path", { class: "edge", d: `M${point(a1, b1)} C${point(a1 + bend, b1 + sink)} ${point(a2 - bend, b2 + sink)} ${point(a2 - 7, b2)}` }),
      draw("path", { class: "tip", d: `M${tip.x},${tip.y} ${down ? "l-4,-8 h8 z" : "l-8,-4 v8 z"}` }),
      draw("text", { class: "faint", ...label }, cut(edge.tensors.join(", "), down ? 24 : far ? 60 : 17)),
    );
  }
  for (const node of nodes) {
    const { x, y } = at(start(node), side(node));
    svg.append(...box(node, x, y, model, now, rates));
  }
}

function box(node, x, y, whole, now, rates) {
  const text = (line, content, kind) => draw("text", { class: kind, x: x + 12, y: y + 20 + 17 * line }, content);
  const frame = (kind) => draw("rect", { class: kind, x, y, width: BOX.width, height: BOX.height, rx: 7 });
  if (node.end) {
    const rate = rates.get(key(whole));
    const tensors = (node.end === "request" ? whole.inputs : whole.outputs).map((tensor) => tensor.name).join(", ");
    const detail = node.end === "request" ? `${perSecond(rate) ?? "–"} per s` : `p50 ${inMillis(whole.latencies.request.p50_seconds)}`;
    return [frame("end"), text(0, node.end, "name"), text(1, cut(tensors, 26), "faint"), text(2, detail, "")];
  }
  const { step } = node;
  const model = hosted(now, step);
  const rate = model && rates.get(key(model));
  const queue = model?.queue;
  return [
    frame(`${model?.ready ? "ready" : "unready"}${node.isSlowest ? " bottleneck" : ""}`),
    text(0, cut(step.model, 24), "name"),
    text(1, `${model?.workers ?? 0} ${model?.workers === 1 ? "worker" : "workers"}, ${perSecond(rate) ?? "–"} per s`, ""),
    text(2, queue ? `${queue.waiting} queued, ${queue.delivered} in work` : "no queue", ""),
    text(3, `wait ${inMillis(model?.latencies?.worker_queue.p50_seconds)} run ${inMillis(model?.latencies?.compute.p50_seconds)}`, "faint"),
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
  const code = model ? clients(model, location.origin + BASE, Object.keys(headers)[0] ?? null) : [];
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
narrow.addEventListener("change", () => shown && showGraph(shown, rates));
find("access").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(find("key").value.trim());
  showCode(chosen());
});

// A key is kept for this tab, so that a reload does not ask for it again.
const KEPT = "trireme-key";

function useKey(text) {
  const header = text.match(/^([A-Za-z0-9-]+):\s*(.+)$/);
  headers = text === "" ? {} : header ? { [header[1]]: header[2] } : { Authorization: `Bearer ${text}` };
  sessionStorage.setItem(KEPT, text);
}

useKey(sessionStorage.getItem(KEPT) ?? "");
follow();
