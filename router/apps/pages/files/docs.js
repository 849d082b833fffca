// Shows openapi.json with Swagger UI. A key that is asked for stays in this tab, and is used for the calls that are tried.

/* global SwaggerUIBundle */

const KEY = "baton-api-key";
// The dashboard's, where it was opened in this tab before.
const ADMIN_TOKEN = "baton-admin-token";
const byId = (id) => document.getElementById(id);

function say(text) {
  byId("message").textContent = text;
  byId("message").hidden = !text;
}

function show(spec, key) {
  // The router may be served under a path of a proxy: calls go to where this page came from.
  spec.servers = [{ url: new URL(".", location.href).href.replace(/\/$/, "") }];
  const ui = SwaggerUIBundle({
    spec,
    domNode: byId("reference"),
    deepLinking: true,
    displayRequestDuration: true,
    docExpansion: "list",
    validatorUrl: null,
    onComplete: () => {
      if (key) ui.preauthorizeApiKey("api_key", key);
      const adminToken = sessionStorage.getItem(ADMIN_TOKEN);
      if (adminToken) ui.preauthorizeApiKey("admin_token", adminToken);
    },
  });
}

async function start() {
  const key = sessionStorage.getItem(KEY);
  const response = await fetch("openapi.json", { headers: key ? { authorization: `Bearer ${key}` } : {} });
  byId("login").hidden = response.status !== 401;
  if (response.status === 401) {
    say(key ? "The router does not take this key." : "");
    sessionStorage.removeItem(KEY);
    byId("key").focus();
    return;
  }
  if (!response.ok) throw new Error(`the router answered ${response.status}`);
  say("");
  show(await response.json(), key);
}

// Swagger UI is dark when this class says so; the system says when.
const isDark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", isDark.matches);
isDark.addEventListener("change", follow);
follow();

const tryToStart = () => start().catch((error) => say(`The reference cannot be shown: ${error.message}.`));

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("key").value.trim());
  byId("key").value = "";
  tryToStart();
});
tryToStart();
