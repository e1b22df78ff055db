// A client of nostr-tools at the feed of a relay: says in JSON what it did and what it heard.
//   node feed.mjs URL AUTHOR_SECRET_HEX (open | private)
import { finalizeEvent, getPublicKey, verifyEvent } from 'nostr-tools/pure'
import { Relay } from 'nostr-tools/relay'

const [url, secretHex, mode] = process.argv.slice(2)
const secret = Uint8Array.from(Buffer.from(secretHex, 'hex'))
const author = getPublicKey(secret)
const heard = { author, notices: [] }

const snapshot = (d, counter, o = 'put') =>
  finalizeEvent(
    {
      kind: 42061,
      created_at: Math.floor(Date.now() / 1000) - 60 + counter,
      tags: [['d', d], ['o', o], ['vc', 'node', String(counter)]],
      content: `sealed ${counter}`,
    },
    secret,
  )

// What a subscription brings up to its EOSE, or why it was closed; it stays open, and `next` waits for what comes live.
function subscribe(relay, filters) {
  return new Promise((resolve) => {
    const events = []
    let woken = () => {}
    const sub = relay.subscribe(filters, {
      onevent: (event) => {
        events.push(event)
        woken()
      },
      oneose: () => resolve({ events: events.splice(0), next, sub }),
      onclose: (reason) => resolve({ reason, events, sub }),
    })
    const next = async () => {
      while (!events.length) await new Promise((wake) => (woken = wake))
      return events.shift()
    }
  })
}

// A word that nostr-tools does not know, on the same socket.
async function changes(relay, filter) {
  const frames = []
  return new Promise((resolve) => {
    const usual = relay._onmessage
    relay.ws.onmessage = (message) => {
      const frame = JSON.parse(message.data)
      if (frame[0] !== 'CHANGES') return usual.call(relay, message)
      frames.push(frame.slice(2))
      if (frame[2] === 'EOSE' || frame[2] === 'ERR') resolve(frames)
    }
    relay.send(JSON.stringify(['CHANGES', 'c', filter]))
  })
}

const relay = new Relay(url)
relay.baseEoseTimeout = relay.publishTimeout = 60_000 // its own patience is soon over on a busy machine
relay.onnotice = (text) => heard.notices.push(text)
await relay.connect()

if (mode === 'private') {
  const refused = await subscribe(relay, [{ authors: [author] }])
  heard.refused = refused.reason
  heard.authenticated = await relay.auth(async (template) => finalizeEvent(template, secret))
}

const first = snapshot('doc', 1)
const second = snapshot('doc', 2)
heard.published = [await relay.publish(first), await relay.publish(second), await relay.publish(first)]
heard.blocked = await relay.publish(finalizeEvent({ ...first, kind: 1 }, secret)).catch((error) => String(error.message ?? error))

const found = await subscribe(relay, [{ kinds: [42061], authors: [author], '#d': ['doc'], limit: 10 }])
heard.found = found.events.map((event) => event.content)
heard.verified = found.events.every((event) => verifyEvent({ ...event }))
const third = snapshot('doc', 3, 'del')
heard.published.push(await relay.publish(third))
heard.live = (await found.next()).content
found.sub.close()

const byId = await subscribe(relay, [{ ids: [first.id, 'f'.repeat(64)] }])
heard.by_id = byId.events.map((event) => event.id === first.id)
byId.sub.close()

const frames = await changes(relay, { mode: 'bootstrap', kinds: [42061], authors: [author] })
heard.changes = frames.map((frame) => (frame[0] === 'SNAPSHOT' ? [frame[0], frame[1].content] : frame))

relay.close()
process.stdout.write(JSON.stringify(heard), () => process.exit()) // its timers would keep it waiting
