// Shows the token to the server once; the session that it answers with is out of reach of scripts.

import { ask } from "/dom.js";

const token = document.getElementById("token");
const problem = document.getElementById("problem");

document.getElementById("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await ask("/api/login", { method: "POST", body: { token: token.value } });
    // Where the visitor was: the page keeps its place behind the #.
    window.location.replace(`/${window.location.hash}`);
  } catch (error) {
    token.select();
    problem.textContent = error.message;
    problem.hidden = false;
  }
});
