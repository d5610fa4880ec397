// Conversations in the browser's own database; without one (a private window), in memory.

const NAME = "tahr";
const TABLE = "conversations";

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function openDatabase() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
  return settled(request);
}

/** Reads and writes conversations; `isLasting` is false where they end with the page. */
export async function openStore() {
  try {
    const database = await openDatabase();
    const table = (mode) => database.transaction(TABLE, mode).objectStore(TABLE);
    return {
      isLasting: true,
      all: () => settled(table("readonly").getAll()),
      put: (conversation) => settled(table("readwrite").put(conversation)),
      remove: (id) => settled(table("readwrite").delete(id)),
    };
  } catch {
    const nothing = async () => undefined;
    return { isLasting: false, all: async () => [], put: nothing, remove: nothing };
  }
}

/** Small settings that outlive the page. */
export const settings = {
  read(name, otherwise) {
    try {
      return JSON.parse(localStorage.getItem(`tahr-${name}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  write(name, value) {
    try {
      localStorage.setItem(`tahr-${name}`, JSON.stringify(value));
    } catch {
      // A browser that keeps nothing still chats.
    }
  },
};
