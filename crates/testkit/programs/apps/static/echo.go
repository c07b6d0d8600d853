// An echo server and client of Go's net package. Built without cgo it is static: no preload can reach it.
//
// usage: echo server PORT | client PORT ROUNDS
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

func main() {
	address := "127.0.0.1:" + os.Args[2]
	var err error
	if os.Args[1] == "server" {
		err = serve(address)
	} else {
		var rounds int
		if rounds, err = strconv.Atoi(os.Args[3]); err == nil {
			err = talk(address, rounds)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			io.Copy(connection, connection)
			connection.Close()
		}()
	}
}

func talk(address string, rounds int) error {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer connection.Close()
	for i := 0; i < rounds; i++ {
		message := bytes.Repeat([]byte(strconv.Itoa(i)+" "), 1+i*37%7000)
		if _, err := connection.Write(message); err != nil {
			return err
		}
		answer := make([]byte, len(message))
		if _, err := io.ReadFull(connection, answer); err != nil {
			return err
		}
		if !bytes.Equal(message, answer) {
			return fmt.Errorf("round %d: the answer differs", i)
		}
	}
	fmt.Printf("ok %d rounds\n", rounds)
	return nil
}
