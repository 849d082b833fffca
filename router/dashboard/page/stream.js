// The router's API: GET admin/live, and orders. EventSource cannot send a header, so the stream is read with fetch().

import { byId, setText } from "./dom.js";

const TOKEN = "baton-admin-token";
const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 10000;

let show = () => {};

export function say(text) {
  setText(byId("message"), text);
  byId("message").hidden = !text;
}

function connection(state, text) {
  byId("connection").className = state;
  setText(byId("connection"), text);
}

function authorization() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
}

async function errorOf(response) {
  const body = await response.json().catch(() => null);
  return `${response.status}: ${body?.error?.message ?? response.statusText}`;
}

// The button is out of use until the router has answered.
export async function order(button, path, what) {
  button.disabled = true;
  try {
    const response = await fetch(path, { method: "POST", headers: authorization() });
    if (response.status === 401) askForToken();
    else say(response.ok ? "" : `${what} failed: ${await errorOf(response)}`);
  } catch (error) {
    say(`${what} failed: ${error.message}`);
  }
  button.disabled = false;
}

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
  for await (const snapshot of snapshots(response.body)) {
    connection("live", `live, ${new Date(snapshot.time * 1000).toLocaleTimeString()}`);
    show(snapshot);
  }
  return true;
}

// For ever, or until a token is needed. ``onSnapshot`` is called with each one.
export async function watch(onSnapshot) {
  show = onSnapshot;
  for (let waitMs = FIRST_WAIT_MS; ; waitMs = Math.min(waitMs * 2, MAX_WAIT_MS)) {
    const beganMs = Date.now();
    try {
      if (!(await watchOnce())) return;
      connection("lost", "the router closed the stream; connecting again");
    } catch (error) {
      connection("lost", `not connected: ${error.message}`);
    }
    document.body.classList.add("stale");
    if (Date.now() - beganMs > MAX_WAIT_MS) waitMs = FIRST_WAIT_MS;
    await new Promise((resolve) => setTimeout(resolve, waitMs));
  }
}

function askForToken() {
  say(sessionStorage.getItem(TOKEN) ? "The router does not take this token." : "");
  sessionStorage.removeItem(TOKEN);
  connection("lost", "not connected");
  document.querySelector("main").hidden = true;
  byId("login").hidden = false;
  byId("token").focus();
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value);
  byId("token").value = "";
  byId("login").hidden = true;
  watch(show);
});
