// Requests from Node's HTTP client over a keep-alive agent with up to CONNECTIONS sockets.
// usage: node http_client.js PORT CONNECTIONS REQUESTS_PER_CONNECTION
'use strict';
const assert = require('node:assert');
const http = require('node:http');
const { createHash } = require('node:crypto');

const [port, connections, requests] = process.argv.slice(2).map(Number);
const agent = new http.Agent({ keepAlive: true, maxSockets: connections });
const seen = new Set();

function send(method, path, body) {
  return new Promise((resolve, reject) => {
    const request = http.request({ host: '127.0.0.1', port, method, path, agent }, (response) => {
      const chunks = [];
      response.on('data', (chunk) => chunks.push(chunk));
      response.on('end', () => resolve(Buffer.concat(chunks)));
      response.on('error', reject);
    });
    request.on('socket', (socket) => seen.add(socket));
    request.on('error', reject);
    request.end(body);
  });
}

async function worker(number) {
  for (let turn = 0; turn < requests; turn++) {
    const size = 1 + (number * 7919 + turn * 104729) % 60000;
    const answer = await send('GET', `/${size}`);
    assert.ok(answer.equals(Buffer.alloc(size, `/${size}`)), `GET /${size}`);
    const body = Buffer.alloc(size, `${number} ${turn} `);
    const digest = await send('POST', '/', body);
    assert.strictEqual(digest.toString(), createHash('sha256').update(body).digest('hex'));
  }
}

Promise.all(Array.from({ length: connections }, (_, number) => worker(number))).then(() => {
  console.log(`ok ${2 * connections * requests} requests on ${seen.size} connections`);
  agent.destroy();
}, (failure) => {
  console.error(failure);
  process.exit(1);
});
