// The questions that every client asks, and the report of its paths. BASE_URL and API_KEY name the
// stack.
import assert from "node:assert/strict";
import { z } from "zod";

export const { BASE_URL, API_KEY } = process.env;
// Examples for OpenAI's API ask for it; `baton up` answers to it.
export const MODEL = "gpt-4o";
export const QUESTION = "What is TTFT?";
export const WEATHER = "What is the weather in Paris?";
export const FACTS = "Extract name and age: Ann is 34 years old.";
export const Person = z.object({ name: z.string(), age: z.number().int() });
export const City = z.object({ city: z.string() });
export const CITY_SCHEMA = {
  type: "object", properties: { city: { type: "string" } }, required: ["city"],
};
export const DESCRIPTION = "Get the current weather of a city.";

export const getWeather = ({ city }) => `18 degrees and sunny in ${city}`;

export const asked = (content) => [{ role: "user", content }];

export const checkAnswer = (text) => assert.match(text, /^TTFT is the time to first token/);

export function checkPieces(pieces) {
  checkAnswer(pieces.join(""));
  assert.ok(pieces.filter((piece) => piece).length > 3, "the answer came in pieces");
}

export function checkWeather(text) {
  assert.match(text, /Paris/);
  assert.match(text, /18 degrees/);
}

export const checkPerson = (person) => assert.deepEqual(person, { name: "Ann", age: 34 });

export async function report(face, paths) {
  for (const [path, run] of Object.entries(paths)) {
    let error = "";
    try {
      await run();
    } catch (caught) {
      error = `${caught?.name}: ${caught?.message}`.slice(0, 300);
      console.error(caught);
    }
    console.log(JSON.stringify({ interface: face, path, error }));
  }
}
