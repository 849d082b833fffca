// OpenAI's client for Node.
import OpenAI from "openai";
const { BATON_URL, BATON_KEY, BATON_MODEL } = process.env;
const client = new OpenAI({ baseURL: `${BATON_URL}/v1`, apiKey: BATON_KEY });
const messages = [{ role: "user", content: "What is Baton?" }];
const schema = { type: "object", properties: { leg: { enum: [1, 2, 3] } }, required: ["leg"], additionalProperties: false };
const tool = { type: "function", function: { name: "pass_on", strict: true, parameters: schema } };
async function check(call, work) {
  let ok = false, why = "";
  try { ok = Boolean(await work()); if (!ok) why = "nothing came"; } catch (error) { why = String(error).slice(0, 600); }
  console.log(JSON.stringify({ call, ok, why }));
}
const ask = (more) => client.chat.completions.create({ model: BATON_MODEL, messages, max_tokens: 200, ...more });
await check("chat", async () => (await ask({})).choices[0].message.content);
await check("chat, streamed", async () => { let text = ""; for await (const chunk of await ask({ stream: true })) text += chunk.choices[0]?.delta?.content ?? ""; return text; });
await check("chat.completions.stream()", async () => (await client.chat.completions.stream({ model: BATON_MODEL, messages }).finalContent()));
await check("response_format: json_schema", async () => JSON.parse((await ask({ response_format: { type: "json_schema", json_schema: { name: "leg", strict: true, schema } } })).choices[0].message.content).leg);
await check("tools: required", async () => JSON.parse((await ask({ tools: [tool], tool_choice: "required" })).choices[0].message.tool_calls[0].function.arguments).leg);
await check("chat.completions.runTools()", async () => await client.chat.completions.runTools({ model: BATON_MODEL, messages, tool_choice: "auto", tools: [{ type: "function", function: { name: "pass_on", function: () => "done", parse: JSON.parse, description: "x", parameters: schema } }] }).finalContent());
await check("n: 2", async () => (await ask({ n: 2, temperature: 1 })).choices.length === 2);
await check("completions, a list of prompts", async () => (await client.completions.create({ model: BATON_MODEL, prompt: ["a", "b"], max_tokens: 4 })).choices.length === 2);
await check("responses", async () => (await client.responses.create({ model: BATON_MODEL, input: "What is Baton?" })).output_text);
await check("responses, streamed", async () => { let last; for await (const event of await client.responses.create({ model: BATON_MODEL, input: "What is Baton?", stream: true })) last = event.type; return last === "response.completed"; });
await check("models", async () => (await client.models.list()).data.some((model) => model.id === BATON_MODEL));
