// What this server's page shows: all of a local stack, or what may be read of a cluster's release.

import { ask } from "/dom.js";

export const mode = await ask("/api/mode");

// Where room is short: pods of a Deployment differ in the end of their long names.
export const shortName = (name) => (mode.is_local || name.length < 24 ? name : `…${name.slice(name.lastIndexOf("-"))}`);
