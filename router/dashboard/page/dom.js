// Small helpers to build and update nodes. Text that comes from requests or workers only ever goes into textContent.

export const STATES = ["queued", "prefilling", "held", "reading", "decoding"];

export const byId = (id) => document.getElementById(id);

export function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// Written only when it differs: a node that does not change costs no layout and is not read out again.
export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setLabel(node, text) {
  if (node.title === text) return;
  node.title = text;
  node.setAttribute("aria-label", text);
}

// The rule of protocol/ids.py: of every made-up id, a request's too, the first eight characters are shown, and every
// command takes them. An id that somebody chose (or a URL) is shown whole.
export const short = (id) => (/^[0-9a-f]{12,}$/.test(id) ? id.slice(0, 8) : id);
export const shortRequest = short;

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 120000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 60000)} min`;
}

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? value.toFixed(1) : count(value);
}

// Rows that stay where they are, so that a button can be hit and a screen reader is not sent back.
export function reconcile(parent, items, build, update) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  const wanted = new Set(items.map((item) => item.id));
  for (const [key, node] of known) if (!wanted.has(key)) node.remove();
  let next = parent.firstElementChild;
  for (const item of items) {
    let node = known.get(item.id);
    if (!node) {
      node = build(item);
      node.dataset.key = item.id;
    }
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
    update(node, item);
  }
}

// A bar of parts, each a class name.
export function bar(parts, className = "") {
  const node = make("div", `bar ${className}`);
  node.setAttribute("role", "img");
  for (const part of parts) node.append(make("i", part));
  return node;
}

export function setBar(node, values, total, label) {
  setLabel(node, label);
  values.forEach((value, i) => {
    const width = `${total > 0 ? Math.min(100, (100 * value) / total).toFixed(1) : 0}%`;
    if (node.children[i].style.width !== width) node.children[i].style.width = width;
  });
}
