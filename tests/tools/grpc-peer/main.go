// A gRPC server and client of Go's own implementation, which sends other frames than grpcio does:
// it measures bandwidth by PING and moves windows while it runs.
//
//	grpc-peer serve SOCKET
//	grpc-peer call SOCKET TAIL
//
// The client runs everything at once on one connection and prints what came of it, a line a
// subject; replies of hooked methods must be longer than their requests by TAIL plus signs.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	most      = 80 << 20
	callers   = 24
	calls     = 60
	streams   = 12
	messages  = 150
	deadlines = 60
	cancels   = 60
	largest   = 64 << 20
)

// raw passes messages as bytes.
type raw struct{}

func (raw) Name() string { return "raw" }

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = bytes.Clone(data)
	return nil
}

func serve(path string) error {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer(
		grpc.ForceServerCodec(raw{}),
		grpc.MaxRecvMsgSize(most),
		grpc.MaxSendMsgSize(most),
		grpc.UnknownServiceHandler(answer),
	)
	fmt.Println("up")
	return server.Serve(listener)
}

func answer(_ any, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	name := full[strings.LastIndex(full, "/")+1:]
	given, _ := metadata.FromIncomingContext(stream.Context())
	own := metadata.MD{"x-own": given["x-own"], "x-own-bin": given["x-own-bin"]}
	stream.SetTrailer(own)
	switch name {
	case "Wait":
		if err := stream.SendHeader(own); err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	case "Fail":
		it := status.New(codes.FailedPrecondition, "50 % \u2713")
		it, err := it.WithDetails(wrapperspb.Bytes([]byte{0, 255, 10}))
		if err != nil {
			return err
		}
		return it.Err()
	}
	for {
		var message []byte
		if err := stream.RecvMsg(&message); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
	}
}

// tally counts what came of each subject.
type tally struct {
	lock   sync.Mutex
	counts map[string]int
}

func (it *tally) add(format string, words ...any) {
	it.lock.Lock()
	defer it.lock.Unlock()
	it.counts[fmt.Sprintf(format, words...)]++
}

func pattern(seed, size int) []byte {
	message := make([]byte, size)
	for at := range message {
		message[at] = byte(at*7 + seed)
	}
	return message
}

type client struct {
	*grpc.ClientConn
	*tally
	tail []byte
}

func (it *client) unary(method string, message []byte, options ...grpc.CallOption) {
	var reply []byte
	err := it.Invoke(context.Background(), method, &message, &reply, options...)
	if strings.HasSuffix(method, "/Grow") && len(message) < 1<<20 {
		message = append(bytes.Clone(message), it.tail...)
	}
	it.add("%s %v, right %t", method, status.Code(err), bytes.Equal(reply, message))
}

func (it *client) mixed(caller int) {
	for call := range calls {
		message := pattern(call, (caller*7919+call*104729)%150_000)
		method := []string{"/any/Echo", "/h/Keep", "/h/Grow"}[(caller+call)%3]
		if call%10 == 9 {
			it.unary(method, message, grpc.UseCompressor("gzip"))
		} else {
			it.unary(method, message)
		}
	}
}

func (it *client) waiting(method string, gives_up bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	if gives_up {
		cancel()
		ctx, cancel = context.WithCancel(context.Background())
	}
	defer cancel()
	description := grpc.StreamDesc{ServerStreams: true}
	stream, err := it.NewStream(ctx, &description, method)
	if err == nil {
		message := []byte("wait")
		_ = stream.SendMsg(&message)
		_ = stream.CloseSend()
		if gives_up {
			_, _ = stream.Header() // the server has it
			cancel()
		}
		err = stream.RecvMsg(&message)
	}
	it.add("%s given up %t: %v", method, gives_up, status.Code(err))
}

func (it *client) chat(number int) {
	description := grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	ctx := metadata.AppendToOutgoingContext(
		context.Background(), "x-own", "2", "x-own", "1", "x-own-bin", "\x00\xff")
	stream, err := it.NewStream(ctx, &description, "/any/Chat")
	if err != nil {
		it.add("chat: %v", err)
		return
	}
	go func() {
		for each := range messages {
			message := pattern(number, each*311)
			if stream.SendMsg(&message) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	for each := range messages {
		var message []byte
		err := stream.RecvMsg(&message)
		it.add("chat: %v, right %t", err, bytes.Equal(message, pattern(number, each*311)))
		if err != nil {
			return
		}
	}
	var message []byte
	it.add("chat ends: %v %q", stream.RecvMsg(&message), stream.Trailer())
}

func (it *client) fails(method string) {
	message, reply := []byte{}, []byte{}
	err := it.Invoke(context.Background(), method, &message, &reply)
	it.add("%s %v %v", method, err, status.Convert(err).Proto().GetDetails())
}

func call(path, tail string) error {
	size, err := strconv.Atoi(tail)
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient(
		"unix:"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(most), grpc.MaxCallSendMsgSize(most)),
	)
	if err != nil {
		return err
	}
	defer connection.Close()
	it := &client{connection, &tally{counts: map[string]int{}}, bytes.Repeat([]byte("+"), size)}
	var group sync.WaitGroup
	start := func(count int, work func(int)) {
		for each := range count {
			group.Add(1)
			go func() { defer group.Done(); work(each) }()
		}
	}
	start(callers, it.mixed)
	start(streams, it.chat)
	for _, service := range []string{"/any", "/h"} {
		start(deadlines, func(int) { it.waiting(service+"/Wait", false) })
		start(cancels, func(int) { it.waiting(service+"/Wait", true) })
		start(cancels, func(int) { it.fails(service + "/Fail") })
	}
	start(1, func(int) {
		for _, method := range []string{"/any/Echo", "/h/Keep", "/h/Grow"} {
			it.unary(method, pattern(1, largest))
		}
	})
	group.Wait()
	lines := make([]string, 0, len(it.counts))
	for what, count := range it.counts {
		lines = append(lines, fmt.Sprintf("%d %s", count, what))
	}
	sort.Strings(lines)
	fmt.Println(strings.Join(lines, "\n"))
	return nil
}

func main() {
	err := fmt.Errorf("usage: grpc-peer serve SOCKET | call SOCKET TAIL")
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		err = serve(os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == "call":
		err = call(os.Args[2], os.Args[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
