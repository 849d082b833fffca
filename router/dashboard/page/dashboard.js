// The page reads GET admin/live and shows each snapshot. Text that comes from requests or workers is only ever put
// into textContent. EventSource cannot send a header, so the stream is read with fetch().

const STATES = ["queued", "prefilling", "held", "reading", "decoding"];
const BLOCKS = ["leased", "pinned", "cached", "free"];
const TOKEN = "baton-admin-token";
const MAX_DOTS = 200;
const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 10000;

const byId = (id) => document.getElementById(id);

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function say(text) {
  byId("message").textContent = text;
  byId("message").hidden = !text;
}

// Made-up ids are long and their beginnings differ; an id that somebody chose (or a URL) is shown whole.
const short = (id) => (/^[0-9a-f]{32}$/.test(id) ? id.slice(0, 8) : id);

function duration(ms) {
  if (ms === null || ms === undefined) return "-";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 120000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 60000)} min`;
}

// --- the API

function authorization() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
}

async function errorOf(response) {
  const body = await response.json().catch(() => null);
  return `${response.status}: ${body?.error?.message ?? response.statusText}`;
}

async function order(path, what) {
  try {
    const response = await fetch(path, { method: "POST", headers: authorization() });
    if (response.status === 401) askForToken();
    say(response.ok ? "" : `${what} failed: ${await errorOf(response)}`);
  } catch (error) {
    say(`${what} failed: ${error.message}`);
  }
}

// --- the stream

async function* snapshots(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const end = text.lastIndexOf("\n\n");
    if (end < 0) continue;
    // Of several that came together only the newest is shown.
    const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data: "));
    text = text.slice(end + 2);
    if (data.length) yield JSON.parse(data[data.length - 1].slice(6));
  }
}

async function watchOnce() {
  const response = await fetch("admin/live", { headers: authorization(), cache: "no-store" });
  if (response.status === 401) {
    askForToken();
    return false;
  }
  if (!response.ok) throw new Error(await errorOf(response));
  say("");
  for await (const snapshot of snapshots(response.body)) show(snapshot);
  return true;
}

async function watch() {
  for (let waitMs = FIRST_WAIT_MS; ; waitMs = Math.min(waitMs * 2, MAX_WAIT_MS)) {
    const beganMs = Date.now();
    try {
      if (!(await watchOnce())) return;
      byId("connection").textContent = "the router closed the stream; connecting again";
    } catch (error) {
      byId("connection").textContent = `not connected: ${error.message}`;
    }
    if (Date.now() - beganMs > MAX_WAIT_MS) waitMs = FIRST_WAIT_MS;
    await new Promise((resolve) => setTimeout(resolve, waitMs));
  }
}

function askForToken() {
  say(sessionStorage.getItem(TOKEN) ? "The router does not take this token." : "");
  sessionStorage.removeItem(TOKEN);
  byId("connection").textContent = "not connected";
  document.querySelector("main").hidden = true;
  byId("login").hidden = false;
  byId("token").focus();
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value);
  byId("token").value = "";
  byId("login").hidden = true;
  watch();
});

// --- rows that stay where they are, so that a button can be hit and a screen reader is not sent back

function reconcile(parent, items, build, update) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  let next = parent.firstElementChild;
  for (const item of items) {
    let node = known.get(item.id);
    if (!node) {
      node = build(item);
      node.dataset.key = item.id;
    }
    known.delete(item.id);
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
    update(node, item);
  }
  for (const node of known.values()) node.remove();
}

function bar(parts, label) {
  const node = make("div", "bar");
  node.setAttribute("role", "img");
  for (const part of parts) node.append(make("i", part));
  setBar(node, parts.map(() => 0), 1, label);
  return node;
}

function setBar(node, values, total, label) {
  node.setAttribute("aria-label", label);
  node.title = label;
  values.forEach((value, i) => {
    node.children[i].style.width = `${total > 0 ? Math.min(100, (100 * value) / total) : 0}%`;
  });
}

// --- the sections

function show(snapshot) {
  byId("login").hidden = true;
  document.querySelector("main").hidden = false;
  byId("connection").textContent = `live, ${new Date(snapshot.time * 1000).toLocaleTimeString()}`;
  showFlow(snapshot);
  reconcile(byId("workers"), snapshot.workers, buildWorker, updateWorker);
  reconcile(byId("requests"), snapshot.requests, buildRequest, (node, request) =>
    updateRequest(node, request, snapshot.lease_duration_ms),
  );
  const hidden = snapshot.num_hidden;
  byId("hidden-count").textContent = hidden
    ? `${hidden} more between the oldest and the newest`
    : snapshot.requests.length ? "" : "None now.";
  showPlots(snapshot.history);
}

function showFlow({ counts, queues }) {
  reconcile(
    byId("flow"),
    STATES.map((id) => ({ id })),
    ({ id }) => {
      const node = make("li", id);
      const dots = make("div", "dots");
      dots.setAttribute("aria-hidden", "true");
      node.append(make("strong"), make("span", "", id), dots);
      return node;
    },
    (node, { id }) => {
      node.firstChild.textContent = counts[id] ?? 0;
      const dots = node.lastChild;
      const wanted = Math.min(counts[id] ?? 0, MAX_DOTS);
      while (dots.children.length > wanted) dots.lastChild.remove();
      while (dots.children.length < wanted) dots.append(make("i"));
    },
  );
  const line = (queue, what) =>
    `${queue.length} waiting for ${what}${queue.oldest_ms === null ? "" : `, the longest for ${duration(queue.oldest_ms)}`}`;
  byId("queues").textContent = `${line(queues.prefill, "a prefill worker")}; ${line(queues.held, "a decode worker")}`;
}

function buildWorker(worker) {
  const node = make("article", "card");
  const path = `admin/workers/${encodeURIComponent(worker.id)}`;
  const button = make("button", "drain");
  button.type = "button";
  node.title = worker.id;
  button.addEventListener("click", () => order(`${path}/${button.textContent.toLowerCase()}`, button.ariaLabel));
  node.append(make("h3", "", short(worker.id)), make("p", "about"), make("p", "alarm"), make("div", "room-label"),
    bar(["room"], ""), make("div", "blocks-label"), bar(BLOCKS, ""), make("p", "peers"), button);
  return node;
}

function updateWorker(node, worker) {
  const [, about, alarm, roomLabel, room, blocksLabel, blocks, peers, button] = node.children;
  const alarms = [worker.healthy ? "" : "cannot be reached", worker.draining ? "draining" : ""].filter(Boolean);
  about.textContent = `${worker.role}, ${worker.tp} rank${worker.tp === 1 ? "" : "s"}, ${worker.models?.join(", ") ?? "any model"}`;
  alarm.textContent = alarms.join(", ");
  alarm.hidden = !alarms.length;
  node.classList.toggle("away", !worker.healthy);
  roomLabel.textContent = `${worker.occupied} of ${worker.limit} places taken`;
  setBar(room, [worker.occupied], worker.limit, roomLabel.textContent);
  const known = worker.blocks !== null;
  blocks.hidden = !known;
  blocksLabel.textContent = known ? `${worker.blocks.total} blocks, ${worker.leases} leases` : "blocks not known";
  if (known) {
    const values = BLOCKS.map((name) => worker.blocks[name]);
    setBar(blocks, values, worker.blocks.total, BLOCKS.map((name, i) => `${values[i]} ${name}`).join(", "));
  }
  const { connected, connecting, failed } = worker.handshakes;
  peers.textContent = `peers: ${connected} met, ${connecting} being met, ${failed} failed`;
  button.textContent = worker.draining ? "Resume" : "Drain";
  button.ariaLabel = `${button.textContent} worker ${worker.id}`;
}

function buildRequest(request) {
  const row = make("tr");
  for (let i = 0; i < 10; i++) row.append(make("td"));
  row.children[0].textContent = short(request.id);
  row.children[0].title = request.id;
  row.children[3].className = "phases";
  row.children[6].append(bar(["lease"], ""));
  row.children[8].className = "text";
  row.children[8].textContent = request.user ? `${request.model}, ${request.user}` : request.model;
  const button = make("button", "abort", "Abort");
  button.type = "button";
  button.ariaLabel = `Abort request ${request.id}`;
  button.addEventListener("click", () => order(`admin/requests/${request.id}/abort`, button.ariaLabel));
  row.children[9].append(button);
  return row;
}

function updateRequest(row, request, leaseMs) {
  const cells = row.children;
  row.className = request.state;
  cells[1].className = "state";
  cells[1].textContent = request.state;
  cells[2].textContent = duration(request.age_ms);
  cells[3].textContent = Object.entries(request.phases_ms).map(([state, ms]) => `${state} ${duration(ms)}`).join(", ");
  [request.prefill_worker, request.decode_worker].forEach((id, i) => {
    cells[4 + i].textContent = id === null ? "-" : short(id);
    cells[4 + i].title = id ?? "";
  });
  const left = request.lease_remaining_ms;
  cells[6].firstChild.hidden = left === null;
  if (left !== null) setBar(cells[6].firstChild, [left], leaseMs, `${duration(left)} left`);
  cells[7].textContent = request.num_tokens;
}

// --- plots

const quantiles = (id, title, { p50_ms, p95_ms }) => ({
  id, title, unit: duration, lines: [["p50", p50_ms], ["p95", p95_ms]],
});

function showPlots(history) {
  const rate = (value) => (value === null ? "-" : `${value.toFixed(value < 10 ? 1 : 0)}/s`);
  const plots = [
    { id: "requests", title: "Requests ended, failed", unit: rate,
      lines: [["ended", history.requests_per_s], ["bad", history.failed_per_s]] },
    { id: "tokens", title: "Tokens streamed", unit: rate, lines: [["tokens", history.tokens_per_s]] },
    quantiles("ttft", "TTFT p50, p95", history.ttft),
    quantiles("itl", "ITL p50, p95", history.itl),
    ...Object.entries(history.phases).map(([state, lines]) => quantiles(state, `${state} p50, p95`, lines)),
  ];
  reconcile(byId("plots"), plots, buildPlot, updatePlot);
}

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function buildPlot({ id, title, lines }) {
  const node = make("figure", `card ${id}`);
  const caption = make("figcaption");
  caption.append(make("strong", "", title), make("span"));
  const picture = svg("svg", { viewBox: "0 0 300 100", preserveAspectRatio: "none", role: "img" });
  for (const [name] of lines) picture.append(svg("g", { class: name }));
  node.append(caption, picture);
  return node;
}

function updatePlot(node, { title, unit, lines }) {
  const [caption, picture] = node.children;
  const top = Math.max(0, ...lines.flatMap(([, values]) => values.filter((value) => value !== null)));
  const now = lines.map(([, values]) => unit(values.findLast((value) => value !== null) ?? null)).join(", ");
  const text = `${now} (highest ${unit(top)})`;
  if (caption.lastChild.textContent !== text) caption.lastChild.textContent = text;
  picture.setAttribute("aria-label", `${title}: last ${text}`);
  lines.forEach(([name, values], i) => {
    picture.children[i].replaceChildren(
      ...pieces(values, top).map((points) => svg("polyline", { points, class: name })),
    );
  });
}

// Where nothing was measured the line has a gap; a lone value is drawn as a short line.
function pieces(values, top) {
  const found = [];
  let points = [];
  values.forEach((value, i) => {
    if (value === null) {
      if (points.length) found.push(points);
      points = [];
      return;
    }
    const x = 300 - values.length + i;
    const y = 97 - (top > 0 ? (94 * value) / top : 0);
    points.push(`${x},${y.toFixed(1)}`, `${x + 1},${y.toFixed(1)}`);
  });
  if (points.length) found.push(points);
  return found.map((piece) => piece.join(" "));
}

watch();
