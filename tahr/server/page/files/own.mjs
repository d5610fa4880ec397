// Looking up what a stranger named: a table has its own entries alone, not those every object inherits.

/** The entry of `table` named `key`, or `otherwise`: `constructor` and the like are no entries. */
export const own = (table, key, otherwise) => (Object.hasOwn(table, key) ? table[key] : otherwise);
