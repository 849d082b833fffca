// Small helpers to build and update nodes. Text that comes from requests or workers only ever goes into textContent.

export const byId = (id) => document.getElementById(id);

export function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

export function button(className, text, onClick) {
  const node = make("button", className, text);
  node.type = "button";
  node.addEventListener("click", (event) => {
    event.stopPropagation(); // a row or a card around it has a click of its own
    onClick(event);
  });
  return node;
}

// Written only when it differs: a node that does not change costs no layout and is not read out again.
export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setClass(node, className) {
  if (node.className !== className) node.className = className;
}

export function setLabel(node, text) {
  if (node.title === text) return;
  node.title = text;
  node.setAttribute("aria-label", text);
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
  values.forEach((value, i) => setWidth(node.children[i], total > 0 ? value / total : 0));
}

export function setWidth(node, share) {
  const width = `${Math.min(100, 100 * share).toFixed(1)}%`;
  if (node.style.width !== width) node.style.width = width;
}

// Facts as a list of terms: [[term, value, code?], ...]; facts without a value are left out.
export function showFacts(node, facts) {
  const told = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const items = told.map(([id, value, isCode]) => ({ id, value, isCode }));
  const build = ({ id, isCode }) => {
    const row = make("div");
    row.append(make("dt", "", id), make("dd", isCode ? "code" : ""));
    return row;
  };
  reconcile(node, items, build, (row, { value }) => setText(row.lastChild, value));
}
