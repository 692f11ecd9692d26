// Tenants and their keys: what they may, what they have used, and keys to make or to revoke.

import { ask, copyButton, node } from "/dom.js";
import { count } from "/format.js";
import { mode } from "/mode.js";
import { KeyedTable } from "/table.js";

const CONFIRM_MS = 4000;
const money = (billionths) => (billionths / 1e9).toLocaleString("en", { maximumFractionDigits: 4 });

export function limitsText(limits) {
  const parts = [];
  const add = (value, text) => value && parts.push(text);
  add(limits.requests_per_minute, `${count(limits.requests_per_minute ?? 0)} requests/min`);
  add(limits.tokens_per_minute, `${count(limits.tokens_per_minute ?? 0)} tokens/min`);
  add(limits.concurrency, `${count(limits.concurrency ?? 0)} at once`);
  add(limits.budget_tokens, `${count(limits.budget_tokens ?? 0)} tokens/${limits.budget_period}`);
  add(limits.budget_cost, `${money(limits.budget_cost ?? 0)}/${limits.cost_period}`);
  for (const [model, own] of Object.entries(limits.by_model ?? {})) parts.push(`${model}: ${limitsText(own)}`);
  return parts.join(", ") || "no limits";
}

function revokeButton(row, done) {
  let isSure = false;
  const button = node("button", { class: "small danger", type: "button" }, "Revoke");
  button.addEventListener("click", async () => {
    if (!isSure) {
      isSure = true;
      button.textContent = "For good?";
      setTimeout(() => {
        isSure = false;
        button.textContent = "Revoke";
      }, CONFIRM_MS);
      return;
    }
    button.disabled = true;
    await ask(`/api/admin/keys/${encodeURIComponent(row.key_id)}`, { method: "DELETE" });
    done();
  });
  return button;
}

const columns = (done) => [
  { name: "key", width: "22%", make: (row) => node("span", { class: "id-cell" }, node("span", { class: "id" }, row.key_id), copyButton(row.key_id, "Copy the key's id")), sync: () => {} },
  { name: "begins with", wide: 1, width: "7.5rem", text: (row) => (/^(jwt|cert):/.test(row.shown) ? row.shown : `${row.shown}…`) },
  { name: "limits", text: (row) => limitsText(row.limits) },
  { name: "models", wide: 2, width: "14%", text: (row) => row.allowed_models.join(", ") || "all" },
  { name: "made", wide: 1, width: "6.5rem", text: (row) => new Date(row.created_unix_s * 1000).toLocaleDateString("en-GB") },
  { name: "state", width: "6.6rem", number: true, make: (row) => node("span", {}, row.revoked ? node("span", { class: "tag bad" }, "revoked") : mode.is_local ? revokeButton(row, done) : node("span", { class: "tag good" }, "valid")), sync: () => {} },
];

function budget(window) {
  const parts = [];
  if (window.budget_tokens) parts.push([window.spent_tokens + window.held_tokens, window.budget_tokens, count, "tokens"]);
  if (window.budget_cost) parts.push([window.spent_cost + window.held_cost, window.budget_cost, money, "spent"]);
  return parts.map(([used, most, show, unit]) => {
    const part = Math.min(1, used / most);
    return node("div", {},
      node("div", { class: "note" }, `${window.owner}${window.model ? ` (${window.model})` : ""} · ${window.window}`),
      node("div", { class: "budget", role: "img", "aria-label": `${Math.round(part * 100)} % used` }, node("span", { class: part >= 1 ? "full" : "", style: { width: `${part * 100}%` } })),
      node("div", { class: "note dim" }, `${show(used)} of ${show(most)} ${unit}`));
  });
}

async function tenantCard(name, keys, done) {
  const [limits, usage] = await Promise.all([
    ask(`/api/admin/tenants/${encodeURIComponent(name)}/limits`),
    ask(`/api/admin/usage?tenant=${encodeURIComponent(name)}`),
  ]);
  const table = new KeyedTable(columns(done), (row) => `${row.key_id}${row.revoked}`, { empty: "It has no keys.", label: `Keys of ${name}` });
  table.update([...keys].sort((a, b) => a.revoked - b.revoked || b.created_unix_s - a.created_unix_s));
  const budgets = usage.windows.flatMap(budget);
  return node("section", { class: "tenant card" },
    node("div", { class: "row" }, node("h2", {}, name), node("span", { class: "note dim" }, `all its keys together: ${limitsText(limits.limits)}`),
      node("span", { class: "grow" }), node("a", { class: "note", href: `#/requests?tenant=${encodeURIComponent(name)}` }, "its requests")),
    budgets.length ? node("div", { class: "budgets" }, ...budgets) : null, table.element);
}

function createForm(done) {
  const field = (id, label, attributes = {}) => {
    const input = node("input", { id: `new-${id}`, ...attributes });
    return [input, node("div", {}, node("label", { for: `new-${id}` }, label), input)];
  };
  const numbers = { type: "number", min: "0", placeholder: "unlimited" };
  const [tenant, tenantField] = field("tenant", "Tenant", { required: true, placeholder: "team-a", autocomplete: "off" });
  const [rpm, rpmField] = field("rpm", "Requests a minute", numbers);
  const [tpm, tpmField] = field("tpm", "Tokens a minute", numbers);
  const [open, openField] = field("open", "Open requests", numbers);
  const [tokens, tokensField] = field("tokens", "Budget in tokens", numbers);
  const [models, modelsField] = field("models", "Models (A,B)", { placeholder: "all" });
  const period = node("select", { id: "new-period" }, node("option", { value: "day" }, "a day"), node("option", { value: "month" }, "a month"));
  const problem = node("p", { class: "bad whole", role: "alert", hidden: true });
  const form = node("form", { class: "form card" }, tenantField, rpmField, tpmField, openField, tokensField,
    node("div", {}, node("label", { for: "new-period" }, "Budget for"), period), modelsField,
    node("div", {}, node("button", { class: "primary", type: "submit" }, "Make a key")), problem);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const limits = {};
    const set = (name, input) => input.value && (limits[name] = Number(input.value));
    set("requests_per_minute", rpm);
    set("tokens_per_minute", tpm);
    set("concurrency", open);
    set("budget_tokens", tokens);
    if (limits.budget_tokens) limits.budget_period = period.value;
    const body = { tenant: tenant.value.trim(), limits, allowed_models: models.value.split(",").map((name) => name.trim()).filter(Boolean) };
    try {
      problem.hidden = true;
      const made = await ask("/api/admin/keys", { method: "POST", body });
      form.reset();
      done(made);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
  });
  return form;
}

export function tenantsView() {
  const fresh = node("div");
  const cards = node("div", { class: "thread" });
  let isLeft = false;

  async function look() {
    try {
      const { keys } = await ask("/api/admin/keys");
      const { tenants } = await ask("/api/admin/tenants");
      const made = await Promise.all(tenants.map((name) => tenantCard(name, keys.filter((key) => key.tenant === name), look)));
      if (!isLeft) cards.replaceChildren(...made);
    } catch (error) {
      if (!isLeft) cards.replaceChildren(node("p", { class: "bad" }, error.message));
    }
  }

  const created = (made) => {
    fresh.replaceChildren(node("div", { class: "new-key card" },
      node("b", {}, `A key for ${made.tenant}`), node("span", { class: "note dim" }, "It is shown once and stored nowhere: copy it now."),
      node("span", { class: "id-cell" }, node("code", { class: "id" }, made.key), copyButton(made.key, "Copy the key"))));
    look();
  };
  look();
  const element = [
    node("section", {}, node("div", { class: "section-head" }, node("h1", { class: "grow" }, "Tenants"), node("button", { type: "button", class: "small", onclick: look }, "Refresh")), fresh),
    cards,
    !mode.is_local ? node("p", { class: "note dim" }, "Keys are made and revoked with baton keys --release, or over the admin API.") : node("section", { "aria-labelledby": "new-heading" }, node("div", { class: "section-head" }, node("h2", { id: "new-heading" }, "New key"), node("span", { class: "note dim" }, "as baton keys create; a new tenant comes with its first key")), createForm(created)),
  ];
  return { element, title: "Tenants", leave: () => { isLeft = true; } };
}
