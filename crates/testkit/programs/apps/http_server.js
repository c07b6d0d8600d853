// An HTTP server of Node: answers a POST with the SHA-256 of its body, GET /N with N bytes that the client can compute.
// usage: node http_server.js PORT
'use strict';
const http = require('node:http');
const { createHash } = require('node:crypto');

const server = http.createServer({ keepAlive: true }, (request, response) => {
  if (request.method === 'GET') {
    response.end(Buffer.alloc(Number(request.url.slice(1)), request.url));
    return;
  }
  const hash = createHash('sha256');
  request.on('data', (chunk) => hash.update(chunk));
  request.on('end', () => response.end(hash.digest('hex')));
});
server.listen(Number(process.argv[2]), '127.0.0.1');
process.on('SIGTERM', () => process.exit(0));
